// The kill switch against an in-memory server: suggested reason, delivery and effect.
import { cleanup, screen, waitFor } from "@testing-library/svelte";
import userEvent from "@testing-library/user-event";
import { Fleet } from "$wire/fleet_pb";
import { Kills } from "$wire/kills_pb";
import type { KillRequest } from "$wire/kills_pb";
import { afterEach, expect, test, vi } from "vitest";
import { messageEvent, kill, route } from "../testing/messages";
import { shownAt } from "../testing/app";
import { killHref } from "./reach";

vi.mock("uplot", () => ({ default: class { setData() {} setSize() {} destroy() {} } }));
afterEach(cleanup);

const storm = { callsPerS: 40, attemptsPerS: 108, amplification: 2.7, clients: 1 };
const named = kill("stock").key;

function shown(at: string, sent: KillRequest[] = []) {
  return shownAt(at, ({ service }) => {
    service(Kills, {
      kill: (request) => {
        if (request.options?.validateOnly !== true) sent.push(request);
        return { revision: 21n, reach: { routes: 1, clients: 1 } };
      },
    });
    service(Fleet, {
      listClients: () => ({ clients: [] }),
      watchConvergence: async function* () { yield { affected: 1, acknowledged: 1, done: true }; },
    });
  }, { routes: [route("orders", storm)] });
}

test("who comes from a storm finds the reason written, and may write another", async () => {
  const user = userEvent.setup();
  const sent: KillRequest[] = [];
  shown(killHref("stock", "Retry storm: orders → stock ×2.70"), sent);
  const why = await screen.findByLabelText<HTMLInputElement>(/^Reason/);
  expect(why.value).toBe("Retry storm: orders → stock ×2.70");
  await user.type(why, ", INC-7");
  await user.click(screen.getByRole("button", { name: "Stop retries…" }));
  await user.click(await screen.findByRole("button", { name: "Stop retries now" }));
  await waitFor(() => { expect(sent.map(({ options }) => options?.reason)).toEqual(["Retry storm: orders → stock ×2.70, INC-7"]); });
});

test("who comes from elsewhere must say why", async () => {
  shown(killHref("stock"));
  expect((await screen.findByLabelText<HTMLInputElement>(/^Reason/)).value).toBe("");
});

test("after a stop its route and live retries are shown until confirmed", async () => {
  const user = userEvent.setup();
  const { send } = shown(killHref("stock", "down"));
  await user.click(await screen.findByRole("button", { name: "Stop retries…" }));
  await user.click(await screen.findByRole("button", { name: "Stop retries now" }));
  const proof = await screen.findByTestId("proof");
  expect((await screen.findByTestId("convergence")).textContent).toContain("applied by the only client");
  expect(proof.textContent).toMatch(/Verifying…\s*68\.0 retries\/s now, 68\.0\/s before/);
  expect(screen.getByRole("link", { name: /orders → stock/ }).getAttribute("href")).toBe("/route?caller=orders&cluster=default&callee=stock&method=shop.Stock%2FTake");
  expect(screen.getByLabelText<HTMLInputElement>("Callee").value).toBe("");
  expect(screen.getByLabelText<HTMLInputElement>(/^Reason/).value).toBe("");

  const kills = [kill("stock", { revision: 21n })];
  send(messageEvent({ revision: 21n, kills, routes: [route("orders", { ...storm, killed: 1, awaitedKill: named, attemptsPerS: 60 })] }));
  await waitFor(() => { expect(proof.textContent).toMatch(/Verifying…\s*20\.0 retries\/s now/); });
  expect(screen.getByTestId("still").textContent).toMatch(/◔\s*20\.0/);
  send(messageEvent({ revision: 21n, kills, routes: [route("orders", { callsPerS: 40, attemptsPerS: 40, clients: 1, killed: 1 })] }));
  await waitFor(() => { expect(proof.textContent).toMatch(/Stopped:\s*0\.0 retries\/s now, 68\.0\/s before/); });
  expect(screen.getByTestId("still").textContent).toMatch(/✓\s*0\.0/);
  send(messageEvent({ revision: 21n, kills, routes: [route("orders", { ...storm, killed: 1 })] }));
  await waitFor(() => { expect(proof.textContent).toMatch(/Not stopped:\s*68\.0 retries\/s now/); });
  expect(screen.getByTestId("still").textContent).toMatch(/▲\s*68\.0/);
});
