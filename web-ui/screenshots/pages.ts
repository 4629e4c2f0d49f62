// What is taken: each page with the way to its full state. A page of the router that is not here fails a test (`page/shell/pages.test.ts`).
import type { Page } from "@playwright/test";
import { edges, methods } from "./table";
import type { Kind } from "./servers";

export interface Shown {
  // Of the file.
  readonly name: string;
  readonly path: string;
  // Whose server has it full.
  readonly full: Kind;
  // Where there is most of it, if the full one is ordinary.
  readonly many?: { readonly server: Kind; readonly path: string };
  // What the page itself asks for; while that is blocked it is loading. None = it lives from the stream alone.
  readonly asks?: RegExp;
  // Brings the full page into the state of the picture.
  readonly act?: (page: Page) => Promise<void>;
  // There for its full state alone: the others are those of the page before.
  readonly onlyFull?: boolean;
}

const STREAM = /Fleet\/Watch/;
const DEMO = { caller: "gateway", cluster: "default", callee: "orders", method: "shop.v1.Orders/Place" };
const RULE = { caller: "*", cluster: "*", callee: "stock", method: "shop.v1.Stock/Take" };
const at = (path: string, names: Record<string, string>) => `${path}?${new URLSearchParams(names).toString()}`;

// The edge on which most is repeated, and its first route.
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

async function judgeGuard(page: Page): Promise<void> {
  await page.getByText("Rules that this guard limits").waitFor();
}

// One of the calls that failed, with its attempts.
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
  { name: "guard", path: at("/guard", { caller: "*", cluster: "*", callee: "orders", method: "*" }), full: "large", asks: /Guards\/GetGuard/, act: judgeGuard },
  { name: "clients", path: "/clients", full: "large", asks: /Fleet\/ListClients/ },
  { name: "kill", path: "/kill?callee=stock", full: "stopped", act: choose },
  { name: "history", path: "/history", full: "large", asks: /History\/ListChanges/ },
  { name: "history-compare", path: "/history?from=2", full: "large", asks: /History\/DiffRevisions/ },
  { name: "sign-in", path: "/", full: "guarded", asks: STREAM },
];
