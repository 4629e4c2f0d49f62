// The operator of an incident: knows no names and no cause, and reads only the web UI.
//
// Measures the time until the web UI shows each step. The times of a human for reading and clicking are added
// at fixed rates and not waited for, so that the sum is an upper bound.
import { expect } from "@playwright/test";
import type { Locator, Page } from "@playwright/test";

// Per screen read, and per click.
const READING_S = 5;
const CLICK_S = 2;

// Targets of the steps.
export const BOUNDS_S = [30, 60, 90, 120] as const;

export interface Incident {
  // Caller and callee of the storm, as shown.
  readonly storming: { readonly caller: string; readonly callee: string };
  // Retries per second, when the kill was set and when its effect was confirmed.
  readonly repeats: { readonly before: number; readonly after: number };
  readonly culprit: { readonly who: string; readonly why: string; readonly what: string; readonly revision: string };
  readonly times: readonly Time[];
}

export interface Time {
  readonly what: string;
  // Since the first failure: the time of the web UI, and with that of a human.
  readonly clockedS: number;
  readonly inAllS: number;
}

class Clock {
  readonly times: Time[] = [];
  #human = 0;
  readonly #since: number;

  constructor(since: number) {
    this.#since = since;
  }

  read(): void {
    this.#human += READING_S;
  }

  async click(what: Locator): Promise<void> {
    this.#human += CLICK_S;
    await what.click();
  }

  took(what: string): void {
    const clockedS = (Date.now() - this.#since) / 1000;
    this.times.push({ what, clockedS, inAllS: clockedS + this.#human });
  }
}

// From the Overview, opened at the first failure, to the change.
export async function operate(page: Page, since: number): Promise<Incident> {
  const clock = new Clock(since);
  const storming = await find(page, clock);
  const { repeats, route } = await stop(page, clock);
  await clock.click(route(storming));
  const culprit = await ask(page, clock);
  return { storming, repeats, culprit, times: clock.times };
}

async function find(page: Page, clock: Clock): Promise<Incident["storming"]> {
  await page.goto("/");
  const verdict = page.getByTestId("verdict");
  await expect(verdict.locator(".answer")).toContainText(/Retry storm on \d+ routes?\s*$/, { timeout: 60_000 });
  const worst = await verdict.locator(".answer + p a").first().innerText();
  const [caller = "", callee = ""] = worst.split(" → ");
  clock.read();
  clock.took("the storming route found");
  return { caller, callee };
}

async function stop(page: Page, clock: Clock) {
  await clock.click(page.getByTestId("verdict").getByRole("link", { name: /^Stop retries (to|on all) / }).first());
  await expect(page.getByTestId("reach")).toContainText(/\d connected clients/);
  clock.read();
  // The reason is suggested; the name is entered once per browser.
  await page.getByLabel(/^Your name/).fill("operator");
  await clock.click(page.getByRole("button", { name: "Stop retries…" }));
  clock.read();
  await clock.click(page.getByRole("button", { name: "Stop retries now" }));
  await expect(page.getByTestId("convergence")).toContainText(/applied by (all \d+ clients|the only client)/, { timeout: 60_000 });
  clock.read();
  clock.took("stopped, confirmed by all clients");

  const proof = page.getByTestId("proof");
  await expect(proof).toContainText("✓ Stopped:", { timeout: 90_000 });
  const [after = "", before = ""] = (await proof.locator("p").first().innerText()).match(/[\d.]+(?=( retries)?\/s)/g) ?? [];
  clock.read();
  clock.took("proof: no repeats any more");
  const route = ({ caller, callee }: Incident["storming"]) => proof.getByRole("link", { name: `${caller} → ${callee} ` });
  return { repeats: { before: Number(before), after: Number(after) }, route };
}

// On the Route page.
async function ask(page: Page, clock: Clock): Promise<Incident["culprit"]> {
  const last = page.getByTestId("last-change");
  await expect(last).toBeVisible();
  const [who, why, what, revision] = await Promise.all([
    last.locator("p strong").nth(1).innerText(),
    last.locator("p").first().innerText(),
    last.locator(".settings").first().innerText(),
    last.getByRole("link", { name: /^revision/ }).innerText(),
  ]);
  clock.read();
  clock.took("who changed what, and when");
  return { who, why, what, revision };
}
