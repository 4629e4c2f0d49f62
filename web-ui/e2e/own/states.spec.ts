// Every page without data, while loading, and without a server: a text for each, accessible, and left
// automatically.
import type { Page } from "@playwright/test";
import { Mode } from "../../gen/damper/v1/policy_pb";
import { expectSound } from "../accessibility";
import { at, expect, KEY, live, test } from "./setup";

const EMPTY = [
  ["/", "No service has reported a call yet."],
  ["/chain", "No service has reported a call yet."],
  ["/rules", "There are no rules: each call is sent once, without retries."],
  ["/uncovered", "No service has reported a call yet."],
  ["/guards", "There are no guards: rules apply as written."],
  ["/queues", "No queues yet."],
  ["/queue?name=none", "There is no queue none."],
  ["/job?id=00000000000000000000000000000001", "There is no such job."],
  ["/queue-settings?new=1", "New, not saved yet."],
  ["/clients", "No client is connected."],
  ["/history", "No changes yet."],
  ["/kill", "No kill switch is in force."],
  [at("/route"), "No rule applies to this route:"],
  [at("/rule"), "New, not saved yet."],
  [at("/guard"), "New, not saved yet."],
  ["/history?rev=5", "There is no change at revision 5."],
  ["/nowhere", "There is no page at this address."],
] as const;

test("an unused server explains itself on every page", async ({ page }) => {
  test.slow();
  for (const [path, words] of EMPTY) {
    await test.step(path, async () => {
      await live(page, path);
      await expect(page.getByText(words).first()).toBeVisible();
      await expectSound(page);
    });
  }
});

const WAITING = [
  ["/chain", "Loading the chain…"],
  ["/guards", "Loading guards…"],
  ["/queues", "Loading queues…"],
  ["/queue?name=later", "Loading the queue…"],
  ["/queue-settings?name=later", "Loading the queue…"],
  ["/job?id=00000000000000000000000000000001", "Loading the job…"],
  ["/clients", "Loading clients…"],
  ["/history", "Loading changes…"],
  ["/history?rev=1", "Loading the change…"],
  ["/history?from=0&to=1", "Comparing…"],
  [at("/rule"), "Loading the rule…"],
  [at("/guard"), "Loading the guard…"],
  [at("/route"), "Loading the rule that applies…"],
  [at("/route"), "Loading the last change of a rule for this route…"],
] as const;

// Blocks matching requests until the returned function is called.
async function holdBack(page: Page, what: RegExp): Promise<() => Promise<void>> {
  let release = () => {};
  const released = new Promise<void>((resolve) => { release = resolve; });
  await page.route(what, async (route) => {
    await released;
    await route.continue().catch(() => undefined);
  });
  return async () => {
    release();
    await page.unroute(what);
  };
}

test("a page shows that it is loading while a response is delayed", async ({ page, api }) => {
  await api.rules.putRule({ rule: { key: KEY, policy: { mode: Mode.OBSERVE } } });
  await api.guards.putGuard({ guard: { key: KEY, ceiling: { maxAttempts: 2 } } });
  await api.queues.putQueue({ queue: { name: "later", policy: { mode: Mode.ENFORCE } } });
  for (const [path, words] of WAITING) {
    await test.step(path, async () => {
      const release = await holdBack(page, /\/damper\.v1\.\w+\/(?!Watch)/);
      await live(page, path);
      await expect(page.getByText(words)).toBeVisible();
      // They have the same text.
      if (path === "/chain") await expectSound(page);
      await release();
      await expect(page.getByText(words)).toHaveCount(0);
    });
  }
});

test("it is loading before the first data, also without workers", async ({ page }) => {
  await page.addInitScript(() => { Reflect.deleteProperty(globalThis, "SharedWorker"); });
  const release = await holdBack(page, /\/Watch$/);
  await page.goto("/");
  await expect(page.getByText("Connecting to the control plane…")).toBeVisible();
  await expect(page.getByTestId("liveness")).toContainText("connecting");
  await expectSound(page);
  await release();
  await expect(page.getByTestId("liveness")).toContainText("live");
});

const FAILING = [
  ["Chain", "Cannot load the chain."],
  ["Guards", "Cannot list the guards."],
  ["Queues", "Cannot list the queues."],
  ["Clients", "Cannot load the list of clients."],
  ["History", "Cannot load the history."],
] as const;

test.describe("a server that is gone", () => {
  test.use({ expected: /net::ERR_/ });

  test("is reported on every page, next to the known data", async ({ page, served, api }) => {
    await api.rules.putRule({ rule: { key: KEY, policy: { mode: Mode.OBSERVE } } });
    await live(page, "/");
    // Each page has its code in a file of its own.
    await expect(page.locator("#main")).toHaveAttribute("data-pages", "loaded");
    await served.kill();
    await expect(page.getByText("Disconnected.")).toBeVisible();
    for (const [name, words] of FAILING) {
      await test.step(name, async () => {
        await page.getByRole("link", { name, exact: true }).click();
        await expect(page.getByRole("alert").filter({ hasText: words })).toContainText("The server is not responding.");
        await expectSound(page);
      });
    }
    await page.getByRole("link", { name: "Rules", exact: true }).click();
    await page.getByRole("row").filter({ hasText: KEY.calleeMethod }).getByRole("link").first().click();
    await expect(page.getByRole("alert")).toContainText("Cannot load the rule. The server is not responding.");
    await expectSound(page);
    await served.start();
    await expect(page.getByTestId("liveness")).toContainText("live");
    await page.getByRole("button", { name: "Try again" }).click();
    await expect(page.getByRole("button", { name: "No changes" })).toBeVisible();
    // A list retries automatically.
    await page.getByRole("link", { name: "Clients", exact: true }).click();
    await expect(page.getByText("No client is connected.")).toBeVisible();
  });
});

const long = (letter: string) => letter.repeat(255);
const LONG_KEY = { callerService: long("a"), callerCluster: "default", calleeService: long("b"), calleeMethod: `${"c".repeat(127)}/${"d".repeat(127)}` };

test("names of maximum length break no page", async ({ page, api, connect }) => {
  const key = LONG_KEY;
  await api.rules.putRule({ rule: { key, policy: { mode: Mode.OBSERVE }, owner: long("o") }, options: { author: long("e"), reason: "f".repeat(1_000), owner: long("o") } });
  await api.guards.putGuard({ guard: { key, ceiling: { maxAttempts: 2 }, owner: long("o") } });
  await api.kills.kill({ key, options: { reason: "g".repeat(1_000), author: long("e") } });
  connect(key.callerService).flow((second) => ({ routes: [{ calleeService: key.calleeService, calleeMethod: key.calleeMethod, calls: 10n * second, attempts: 20n * second }] }));
  for (const path of ["/", "/chain", "/rules", "/guards", "/clients", "/history", "/history?rev=1", "/kill", at("/route", key), at("/rule", key), at("/guard", key)]) {
    await test.step(path.slice(0, 20), async () => {
      await live(page, path);
      await expect(page.getByText("g".repeat(100)).first()).toBeVisible();
      await expect(page.getByText(/^Asking/)).toHaveCount(0);
      await expectSound(page);
    });
  }
});

test("names of maximum length break no page of queues", async ({ page, api }) => {
  const { callerService, calleeService, calleeMethod } = LONG_KEY;
  const queue = long("q").slice(0, 64);
  await api.queues.putQueue({ queue: { name: queue, policy: { mode: Mode.ENFORCE }, owner: long("o"), paused: "p".repeat(1_000), submitters: ["*"] } });
  const identity = { service: callerService, cluster: "default", instance: long("i") };
  const { jobs: [job] } = await api.jobs.submit({ identity, jobs: [{ queue, key: long("k"), orderKey: long("l"), calleeService, calleeMethod }] });
  expect(job?.rejected?.message).toBeUndefined();
  for (const path of ["/queues", `/queue?name=${queue}`, `/queue-settings?name=${queue}`, `/job?id=${job?.jobId ?? ""}`]) {
    await test.step(path.slice(0, 20), async () => {
      await live(page, path);
      await expect(page.locator(".loading")).toHaveCount(0);
      await expectSound(page);
    });
  }
});
