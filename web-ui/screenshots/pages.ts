// The pictures: each page with its states. A page that is missing here fails a test
// (`page/shell/pages.test.ts`).
import type { Page } from "@playwright/test";
import { edges, methods } from "./table";
import type { Kind } from "./servers";

export interface Shown {
  // Name of the file.
  readonly name: string;
  readonly path: string;
  // The server with its full state.
  readonly full: Kind;
  // The server with the most data, if the full state is ordinary.
  readonly many?: { readonly server: Kind; readonly path: string };
  // Requests of the page; while they are blocked it is loading. None = it uses the stream alone.
  readonly asks?: RegExp;
  // Brings the full page into the state of the picture.
  readonly act?: (page: Page) => Promise<void>;
  // Has only a full state: the others equal those of the page before.
  readonly onlyFull?: boolean;
}

const STREAM = /Fleet\/Watch/;
const DEMO = { caller: "gateway", cluster: "default", callee: "orders", method: "shop.v1.Orders/Place" };
const RULE = { caller: "*", cluster: "*", callee: "stock", method: "shop.v1.Stock/Take" };
const at = (path: string, names: Record<string, string>) => `${path}?${new URLSearchParams(names).toString()}`;

// The edge with the most retries, and its first route.
const worst = [...edges].sort((a, b) => b.attemptsPerS - b.callsPerS - (a.attemptsPerS - a.callsPerS))[0];
const worstRoute = { caller: worst?.callerService ?? "", cluster: "default", callee: worst?.calleeService ?? "",
  method: methods(worst?.calleeService ?? "", worst ? edges.indexOf(worst) : 0)[0] ?? "" };

async function changeRule(page: Page): Promise<void> {
  const field = (path: string) => page.locator(`[data-field="${path}"]`).locator("input, select").first();
  await field("retry.max_attempts").fill("4");
  await field("timeout").fill("2s");
  await page.getByRole("button", { name: /Review 2 changes/ }).waitFor();
}

async function reviewRule(page: Page): Promise<void> {
  await changeRule(page);
  await page.getByRole("button", { name: /Review 2 changes/ }).click();
  await page.getByRole("dialog").getByLabel(/^Reason/).fill("Two more retries while the ledger restarts");
}

async function awaitLimitedRules(page: Page): Promise<void> {
  await page.getByText("Rules that this guard limits").waitFor();
}

// A failed call with its attempts.
async function openFailure(page: Page): Promise<void> {
  const section = page.getByRole("region", { name: /^Failed calls/ });
  await section.locator(".opener").first().click();
  await section.locator(".waterfall").waitFor();
  await section.evaluate((element) => { element.scrollIntoView(); });
}

async function choose(page: Page): Promise<void> {
  await page.getByTestId("reach").waitFor();
}

export const SHOWN: readonly Shown[] = [
  { name: "overview", path: "/", full: "demo", many: { server: "large", path: "/" } },
  { name: "chain", path: "/chain", full: "demo", many: { server: "large", path: "/chain" }, asks: /Fleet\/GetChain/ },
  { name: "chain-of-one", path: `/chain?service=${worst?.callerService ?? ""}`, full: "large", onlyFull: true },
  { name: "rules", path: "/rules", full: "large" },
  { name: "rule", path: at("/rule", RULE), full: "demo", asks: /Rules\/GetRule/, act: changeRule },
  { name: "rule-review", path: at("/rule", RULE), full: "demo", act: reviewRule, onlyFull: true },
  { name: "uncovered", path: "/uncovered", full: "large" },
  { name: "route", path: at("/route", DEMO), full: "demo", many: { server: "large", path: at("/route", worstRoute) }, asks: /Rules\/Explain|Fleet\/Watch/ },
  { name: "route-failures", path: at("/route", worstRoute), full: "large", act: openFailure, onlyFull: true },
  { name: "guards", path: "/guards", full: "large", asks: /Guards\/ListGuards/ },
  { name: "guard", path: at("/guard", { caller: "*", cluster: "*", callee: "orders", method: "*" }), full: "large", asks: /Guards\/GetGuard/, act: awaitLimitedRules },
  { name: "queues", path: "/queues", full: "demo", asks: /Queues\/ListQueues/ },
  { name: "queue", path: "/queue?name=stock-later", full: "demo", asks: /Queues\/GetQueue/ },
  { name: "queue-settings", path: "/queue-settings?name=stock-later", full: "demo", asks: /Queues\/GetQueue/ },
  { name: "job", path: "/job?id=none", full: "demo", asks: /Queues\/GetJob/ },
  { name: "clients", path: "/clients", full: "large", asks: /Fleet\/ListClients/ },
  { name: "kill", path: "/kill?callee=stock", full: "stopped", act: choose },
  { name: "history", path: "/history", full: "large", asks: /History\/ListChanges/ },
  { name: "history-compare", path: "/history?from=2", full: "large", asks: /History\/DiffRevisions/ },
  { name: "sign-in", path: "/", full: "guarded", asks: STREAM },
];
