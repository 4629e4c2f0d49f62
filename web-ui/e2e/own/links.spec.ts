// A link restores page, filter and order; Back undoes one step at a time. On lists of several pages.
import type { Page } from "@playwright/test";
import { Mode } from "../../gen/damper/v1/policy_pb";
import { expect, live, test } from "./setup";

const MANY = 120;
const callee = (nr: number) => `svc-${String(nr).padStart(3, "0")}`;
const NUMBERS = Array.from({ length: MANY }, (_, nr) => nr);

// The first row below the heading.
const first = (page: Page) => page.getByRole("table").last().getByRole("row").nth(1);

async function walk(page: Page, path: string, column: string, filter: string, name: (nr: number) => string): Promise<void> {
  const sort = column.toLowerCase();
  await live(page, `${path}?q=${filter}&sort=-${sort}&page=2`);
  const asSent = async () => {
    await expect(page.getByRole("searchbox")).toHaveValue(filter);
    await expect(page.getByRole("columnheader", { name: column, exact: true })).toHaveAttribute("aria-sort", "descending");
    await expect(page.getByText("Page 2 of 2")).toBeVisible();
    await expect(first(page)).toContainText(name(MANY - 101));
  };
  await asSent();
  await page.getByRole("button", { name: "Previous" }).click();
  await expect(page).toHaveURL(/page=1/);
  await expect(first(page)).toContainText(name(MANY - 1));
  await page.goBack();
  await asSent();
  await page.getByRole("columnheader", { name: column, exact: true }).getByRole("button").click();
  await expect(page).toHaveURL(new RegExp(`sort=${sort}$`));
  await expect(first(page)).toContainText(name(0));
  await page.goBack();
  await asSent();
  await page.reload();
  await asSent();
  // Typing finds one, and Escape shows all.
  await page.getByRole("searchbox").fill(name(7));
  await expect(page.getByRole("table").last().getByRole("row")).toHaveCount(2);
  await expect(page).toHaveURL(new RegExp(`q=${name(7)}`));
  await page.getByRole("searchbox").press("Escape");
  await expect(page.getByText("Page 1 of 2")).toBeVisible();
  await page.getByRole("searchbox").fill("nothing is called so");
  await expect(page.getByText(/^No .* matches “nothing is called so”|^No .* matches\.$/)).toBeVisible();
  await page.getByRole("button", { name: /Clear the filter|Show all/ }).click();
  await expect(page.getByText("Page 1 of 2")).toBeVisible();
}

test("overview, routes without rules and chain", async ({ page, connect }) => {
  test.slow();
  connect("gateway").report({ routes: NUMBERS.map((nr) => ({ calleeService: callee(nr), calleeMethod: "shop.v1.S/M", calls: 10n, attempts: 10n })) });
  for (const path of ["/", "/uncovered", "/chain"]) await test.step(path, () => walk(page, path, "Callee", "svc-", callee));
});

test("rules, guards and history", async ({ page, api }) => {
  test.slow();
  const keys = NUMBERS.map((nr) => ({ callerService: "*", callerCluster: "*", calleeService: callee(nr), calleeMethod: "*" }));
  for (const key of keys) await api.rules.putRule({ rule: { key, policy: { mode: Mode.OBSERVE } }, options: { author: "ann" } });
  for (const key of keys) await api.guards.putGuard({ guard: { key, ceiling: { maxAttempts: 2 } }, options: { author: "bob" } });
  for (const path of ["/rules", "/guards"]) await test.step(path, () => walk(page, path, "Callee", "svc-", callee));

  await live(page, `/history?q=svc-&kind=rule&author=ann&before=${String(MANY)}`);
  const asSent = async () => {
    await expect(page.getByRole("searchbox")).toHaveValue("svc-");
    await expect(page.getByLabel("Kind")).toHaveValue("rule");
    await expect(page.getByLabel("Author")).toHaveValue("ann");
    await expect(first(page)).toContainText(callee(MANY - 2));
    await expect(page.getByText("guard created")).toHaveCount(0);
  };
  await asSent();
  await page.getByRole("link", { name: "Older" }).click();
  await expect(page).toHaveURL(/before=70/);
  await expect(first(page)).toContainText(callee(68));
  await page.goBack();
  await asSent();
  await page.getByLabel("Kind").selectOption("guard");
  await expect(page.getByText("No change matches")).toBeVisible();
  await page.goBack();
  await asSent();
});

test("clients", async ({ page, connect }) => {
  for (let nr = 0; nr < 20; nr += 1) connect(nr % 2 === 0 ? "gateway" : "orders");
  await live(page, "/clients?q=orders&sort=-instance");
  const asSent = async () => {
    await expect(page.getByRole("searchbox")).toHaveValue("orders");
    await expect(page.getByRole("columnheader", { name: "Instance" })).toHaveAttribute("aria-sort", "descending");
    await expect(first(page)).toContainText("orders-8");
    await expect(page.getByText("10 of 20 clients")).toBeVisible();
  };
  await asSent();
  await page.getByRole("columnheader", { name: "Instance" }).getByRole("button").click();
  await expect(first(page)).toContainText("orders-10");
  await page.getByLabel("Show only clients with problems").check();
  await expect(page.getByText("No client matches.")).toBeVisible();
  await page.goBack();
  await page.goBack();
  await asSent();
});

test("a kill that is prepared, a comparison, and Back over pages", async ({ page, api }) => {
  const key = { callerService: "*", callerCluster: "*", calleeService: "svc-1", calleeMethod: "*" };
  for (const maxAttempts of [2, 3]) await api.rules.putRule({ rule: { key, policy: { mode: Mode.OBSERVE, retry: { maxAttempts } } } });
  await live(page, "/kill?callee=svc-1&caller=gateway&minutes=240&calls=1");
  await expect(page.getByLabel("Callee", { exact: true })).toHaveValue("svc-1");
  await expect(page.getByLabel("Caller", { exact: true })).toHaveValue("gateway");
  await expect(page.getByLabel("Duration", { exact: true })).toHaveValue("240");
  await expect(page.getByLabel(/Reject all calls/)).toBeChecked();
  await expect(page.getByTestId("reach")).toContainText("Stop every call from gateway to svc-1");
  await page.getByRole("link", { name: "History" }).click();
  await page.getByLabel("Compare revision 1").check();
  await page.getByLabel("Compare revision 2").check();
  await page.getByRole("link", { name: "Compare 1 with 2" }).click();
  await expect(page).toHaveURL(/from=1&to=2$/);
  await expect(page.getByTestId("difference")).toContainText(/max_attempts.*2.*3/s);
  await page.reload();
  await expect(page.getByTestId("difference")).toContainText(/max_attempts.*2.*3/s);
  await page.goBack();
  await expect(page.getByLabel("Compare revision 2")).toBeChecked();
  await page.goBack();
  await expect(page.getByLabel("Callee", { exact: true })).toHaveValue("svc-1");
});
