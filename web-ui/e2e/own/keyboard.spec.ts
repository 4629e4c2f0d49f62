// Every path by keyboard: Tab reaches all controls with a visible focus, Enter and Space press, Escape
// closes.
import type { Locator, Page } from "@playwright/test";
import { Mode } from "../../gen/damper/v1/policy_pb";
import { tabTo } from "../accessibility";
import { at, expect, KEY, live, setting, test } from "./setup";

// Name and reason, required without tokens.
async function typeWhy(page: Page, within: Page | Locator, reason = "a drill"): Promise<void> {
  for (const [label, text] of [[/^Reason/, reason], [/^Your name/, "kim"]] as const) {
    await tabTo(page, within.getByLabel(label));
    await page.keyboard.press("ControlOrMeta+A");
    await page.keyboard.type(text);
  }
}

test("a rule is created, changed, in conflict, saved and deleted", async ({ page, api }) => {
  test.slow();
  const { keyboard } = page;
  const button = (name: string | RegExp) => page.getByRole("button", { name });
  const dialog = page.getByRole("dialog");
  const save = async () => {
    await tabTo(page, button(/^Review/));
    await keyboard.press("Enter");
    await typeWhy(page, dialog);
    await tabTo(page, dialog.getByRole("button", { name: "Save" }));
    await keyboard.press("Enter");
    await expect(dialog).toHaveCount(0);
    await expect(page.getByTestId("convergence")).toBeFocused();
    await expect(page.getByTestId("convergence")).toBeInViewport();
  };
  const type = async (text: string) => {
    await tabTo(page, setting(page, "retry.max_attempts"));
    await keyboard.press("ControlOrMeta+A");
    await keyboard.type(text);
  };
  await live(page, "/rules");
  await tabTo(page, page.getByRole("link", { name: "New rule" }));
  await keyboard.press("Enter");
  for (const [label, value] of [["Caller", KEY.callerService], ["Cluster", KEY.callerCluster], ["Callee", KEY.calleeService], ["Method", KEY.calleeMethod]] as const) {
    await tabTo(page, page.getByLabel(label, { exact: true }));
    await keyboard.press("ControlOrMeta+A");
    await keyboard.type(value);
  }
  await type("4");
  await save();
  await expect(page).toHaveURL(at("/rule"));
  expect((await api.rules.getRule({ key: KEY })).policy?.retry?.maxAttempts).toBe(4);

  // Escape closes the review and returns to its button.
  await type("5");
  await tabTo(page, button(/^Review 1 change/));
  await keyboard.press("Enter");
  await expect(dialog).toContainText(/max_attempts.*4.*5/s);
  await keyboard.press("Escape");
  await expect(button(/^Review 1 change/)).toBeFocused();

  await api.rules.putRule({ rule: { key: KEY, policy: { mode: Mode.OBSERVE, retry: { maxAttempts: 3 } } }, options: { author: "another operator" } });
  const mine = page.getByTestId("conflict").getByRole("button", { name: "Keep my changes" });
  await expect(mine).toBeVisible();
  await tabTo(page, mine);
  await keyboard.press("Enter");
  await expect(page.locator("main")).toBeFocused();
  await save();
  expect((await api.rules.getRule({ key: KEY })).policy?.retry?.maxAttempts).toBe(5);

  await tabTo(page, button("Delete the rule…"));
  await keyboard.press("Enter");
  await typeWhy(page, dialog);
  await tabTo(page, dialog.getByRole("button", { name: "Delete" }));
  await keyboard.press("Enter");
  await expect(page.getByText("The rule was deleted.")).toBeVisible();
  await expect(page.getByTestId("convergence")).toBeFocused();
});

test("a guard is saved; sections, choices and codes are reachable", async ({ page, api }) => {
  const { keyboard } = page;
  await live(page, "/guards");
  await tabTo(page, page.getByRole("link", { name: "New guard" }));
  await keyboard.press("Enter");
  await tabTo(page, page.getByLabel("Callee", { exact: true }));
  await keyboard.press("ControlOrMeta+A");
  await keyboard.type("orders");
  await tabTo(page, page.getByLabel("Max attempts"));
  await keyboard.type("2");
  await tabTo(page, page.getByLabel("Limit the retries that this service accepts"));
  await keyboard.press("Space");
  await expect(page.getByLabel("Limit the retries that this service accepts")).toBeChecked();
  await tabTo(page, page.getByRole("button", { name: "Review and save…" }));
  await keyboard.press("Enter");
  await typeWhy(page, page.getByRole("dialog"));
  await tabTo(page, page.getByRole("dialog").getByRole("button", { name: "Save" }));
  await keyboard.press("Enter");
  await expect(page.getByTestId("convergence")).toContainText(/Stored at revision \d+/);
  await expect(page.getByTestId("convergence")).toBeFocused();
  const key = { callerService: "*", callerCluster: "*", calleeService: "orders", calleeMethod: "*" };
  expect((await api.guards.getGuard({ key })).ceiling).toMatchObject({ maxAttempts: 2, repeatLimit: {} });
});

test("a kill is set and ended", async ({ page, api }) => {
  const { keyboard } = page;
  const dialog = page.getByRole("dialog");
  await live(page, "/kill");
  await tabTo(page, page.getByLabel("Callee", { exact: true }));
  await keyboard.type("orders");
  await tabTo(page, page.getByLabel("Duration", { exact: true }));
  await keyboard.press("ArrowUp");
  await typeWhy(page, page, "orders is down");
  await expect(page.getByTestId("reach")).toContainText("Stop retries to orders");
  await tabTo(page, page.getByRole("button", { name: "Stop retries…" }));
  await keyboard.press("Enter");
  await tabTo(page, dialog.getByRole("button", { name: "Stop retries now" }));
  await keyboard.press("Enter");
  await expect(page.getByRole("cell", { name: /^in 1(5|4\.9) min/ })).toBeVisible();
  await expect(page.getByTestId("convergence")).toBeFocused();
  expect((await api.kills.listKills({})).kills.map(({ reason }) => reason)).toEqual(["orders is down"]);
  await tabTo(page, page.getByRole("button", { name: "End it…" }));
  await keyboard.press("Enter");
  await typeWhy(page, dialog);
  await tabTo(page, dialog.getByRole("button", { name: "End it" }));
  await keyboard.press("Enter");
  await expect(page.getByText("No kill switch is in force.")).toBeVisible();
});

test("two changes are compared, and one is rolled back", async ({ page, api }) => {
  const { keyboard } = page;
  for (const maxAttempts of [2, 4]) await api.rules.putRule({ rule: { key: KEY, policy: { mode: Mode.OBSERVE, retry: { maxAttempts } } } });
  await live(page, "/history");
  for (const revision of [2, 1]) {
    await tabTo(page, page.getByLabel(`Compare revision ${String(revision)}`));
    await keyboard.press("Space");
  }
  await tabTo(page, page.getByRole("link", { name: "Compare 1 with 2" }));
  await keyboard.press("Enter");
  await expect(page.getByTestId("difference")).toContainText(/max_attempts.*2.*4/s);
  await page.goBack();
  await tabTo(page, page.getByRole("link", { name: "2", exact: true }));
  await keyboard.press("Enter");
  await tabTo(page, page.getByRole("button", { name: /Undo this change/ }));
  await keyboard.press("Enter");
  await typeWhy(page, page.getByRole("dialog"));
  await tabTo(page, page.getByRole("dialog").getByRole("button", { name: "Roll back" }));
  await keyboard.press("Enter");
  await expect(page.getByTestId("convergence")).toContainText(/Stored at revision 3/);
  expect((await api.rules.getRule({ key: KEY })).policy?.retry?.maxAttempts).toBe(2);
});

test("from the Overview to route, rule and chain; sorting and filter", async ({ page, api, connect }) => {
  test.slow();
  const { keyboard } = page;
  await api.rules.putRule({ rule: { key: KEY, policy: { mode: Mode.OBSERVE, retry: { maxAttempts: 2 } } } });
  connect("gateway").report({ routes: [
    { calleeService: "orders", calleeMethod: KEY.calleeMethod, calls: 10n, attempts: 10n },
    { calleeService: "stock", calleeMethod: "shop.v1.Stock/Take", calls: 10n, attempts: 10n },
  ] });
  await live(page, "/");
  const rows = page.getByRole("table").getByRole("row");
  await expect(rows).toHaveCount(3);
  await keyboard.press("Tab");
  await expect(page.getByRole("link", { name: "Skip to content" })).toBeFocused();
  await expect(page.getByRole("link", { name: "Skip to content" })).toBeInViewport();
  await keyboard.press("Enter");
  await expect(page.getByRole("main")).toBeFocused();

  await tabTo(page, page.getByRole("columnheader", { name: "Callee" }).getByRole("button"));
  await keyboard.press("Enter");
  await expect(rows.nth(1)).toContainText("orders");
  await keyboard.press("Space");
  await expect(rows.nth(1)).toContainText("stock");

  await keyboard.press("/");
  await expect(page.getByRole("searchbox")).toBeFocused();
  await keyboard.type("orders");
  await expect(rows).toHaveCount(2);
  await keyboard.press("Escape");
  await expect(rows).toHaveCount(3);
  await expect(page.getByRole("searchbox")).not.toBeFocused();

  await tabTo(page, rows.filter({ hasText: "orders" }).getByRole("rowheader").getByRole("link"));
  await keyboard.press("Enter");
  await expect(page).toHaveURL(at("/route"));
  await expect(page.getByRole("main")).toBeFocused();
  await tabTo(page, page.getByRole("link", { name: "Edit the rule" }));
  await keyboard.press("Enter");
  await expect(page).toHaveURL(at("/rule"));

  await tabTo(page, page.getByRole("link", { name: "Chain", exact: true }));
  await keyboard.press("Enter");
  await tabTo(page, page.getByRole("link", { name: /shop\.v1\.Stock\/Take/ }));
  await keyboard.press("Enter");
  await expect(page.getByText("No rule applies to this route:")).toBeVisible();

  await tabTo(page, page.getByRole("link", { name: "Without rules" }));
  await keyboard.press("Enter");
  await tabTo(page, page.getByRole("button", { name: /Propose a rule/ }));
  await keyboard.press("Enter");
  const editor = page.getByRole("dialog").getByRole("button", { name: "Open in the editor" });
  await tabTo(page, editor);
  await keyboard.press("Enter");
  await expect(page.getByText("Reasons for the proposed settings")).toBeVisible();

  await tabTo(page, page.getByRole("link", { name: "Clients" }));
  await keyboard.press("Enter");
  await tabTo(page, page.getByLabel("Show only clients with problems"));
  await keyboard.press("Space");
  await expect(page).toHaveURL(/only=amiss/);
});
