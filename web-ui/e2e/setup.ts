// Shared by the browser tests: the server, the demo's chain, and checks of every test.
//
// DAMPER_URL names a server with the demo's traffic. Each test accepts the state that it finds, and deletes
// what it writes.
import { createClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { expect, test as base } from "@playwright/test";
import type { Locator, Page } from "@playwright/test";
import { Guards } from "../gen/damper/v1/guards_pb";
import { History } from "../gen/damper/v1/history_pb";
import { Kills } from "../gen/damper/v1/kills_pb";
import { Rules } from "../gen/damper/v1/rules_pb";
import { heed } from "./browser_errors";

const url = process.env["DAMPER_URL"];
if (!url) throw new Error("set DAMPER_URL to a running server with demo traffic, such as http://127.0.0.1:7654");
const server: string = url;

const transport = createGrpcWebTransport({ baseUrl: server });
export const rules = createClient(Rules, transport);
export const kills = createClient(Kills, transport);
export const guards = createClient(Guards, transport);
export const changes = createClient(History, transport);

export { expect };

// The demo's chain of calls.
export const HOPS = [
  ["gateway", "orders"],
  ["orders", "inventory"],
  ["inventory", "stock"],
] as const;

// Every test also fails on browser errors that it does not expect, and on requests to another host.
export const test = base.extend<{ quiet: undefined; expected: RegExp | undefined }>({
  expected: [undefined, { option: true }],
  quiet: [
    async ({ context, expected }, use) => {
      const complain = heed(context, server, expected);
      await use(undefined);
      complain();
    },
    { auto: true },
  ],
});

export function routeRow(page: Page, caller: string, callee: string) {
  return page
    .locator("table.routes tbody tr")
    .filter({ has: page.locator('[data-label="Caller"]').getByText(caller, { exact: true }) })
    .filter({ has: page.locator('[data-label="Callee"]').getByText(callee, { exact: true }) })
    .first();
}

// The Overview with its first statistics.
export async function opened(page: Page, path = "/"): Promise<void> {
  await page.goto(path);
  await expect(page.getByTestId("liveness")).toContainText("live");
  for (const [caller, callee] of HOPS) await expect(routeRow(page, caller, callee)).toBeVisible();
}

// A key that no other test uses.
export function ownKey(callee: string) {
  return { callerService: "gateway", callerCluster: "*", calleeService: callee, calleeMethod: `test.Browser/M${Date.now()}` };
}

export async function live(page: Page, path: string): Promise<void> {
  await page.goto(path);
  await expect(page.getByTestId("liveness")).toContainText("live");
  // Without it a server that is stopped next leaves some pages without their code.
  await expect(page.locator("#main")).toHaveAttribute("data-pages", "loaded");
}

// Name and reason, required by a server without tokens.
export async function say(within: Page | Locator, reason = "a browser test"): Promise<void> {
  await within.getByLabel(/^Reason/).fill(reason);
  await within.getByLabel(/^Your name/).fill("playwright");
}
