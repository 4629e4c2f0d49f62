// The Route page: its statistics per second, changes, and the rule that applies.
import { Mode } from "../gen/damper/v1/policy_pb";
import { expectSound } from "./accessibility";
import { expect, live, opened, routeRow, rules, test } from "./setup";

const ROUTE = "/route?caller=gateway&cluster=default&callee=orders&method=shop.v1.Orders%2FPlace";

test("a row leads to its route, whose charts start with the overview's", async ({ page }) => {
  await opened(page);
  await expect.poll(() => page.evaluate(() => performance.now())).toBeGreaterThan(4_000);
  await routeRow(page, "inventory", "stock").getByRole("rowheader").getByRole("link").click();
  await expect(page).toHaveURL(/\/route\?caller=inventory&/);
  await expect(page.getByTestId("calls")).toHaveText(/\d/);
  await expect(page.getByRole("img", { name: /^Attempts\/s.*now \d.*lowest/ })).toBeVisible();
  await page.goBack();
  await expect(routeRow(page, "inventory", "stock")).toBeVisible();
});

test("charts begin with points that are older than the page", async ({ page }) => {
  // A span of ten seconds is sent once all processes have had time to report it.
  await expect(async () => {
    await page.goto(ROUTE);
    const chart = page.getByRole("img", { name: /^Attempts\/s.*now \d/ });
    await expect(chart).toBeVisible();
    const loadedAt = await page.evaluate(() => performance.timeOrigin / 1000);
    expect(Number(await chart.getAttribute("data-oldest"))).toBeLessThan(loadedAt - 10);
  }).toPass({ timeout: 60_000 });
});

test("the route has a stream of its own while it is visible", async ({ page }) => {
  await live(page, ROUTE);
  await expect(page.getByText(/Detailed updates/)).toBeVisible();
  const before = await page.getByText(/\d total$/).first().innerText();
  await expect.poll(() => page.getByText(/\d total$/).first().innerText(), { intervals: [500] }).not.toBe(before);
  const ended = page.waitForEvent("requestfailed", (request) => request.url().endsWith("/Watch"));
  await page.getByRole("link", { name: "Rules", exact: true }).click();
  await ended;
});

test("the window of rates stays in the address", async ({ page }) => {
  await live(page, `${ROUTE}&over=60`);
  await expect(page.getByLabel("Rates over")).toHaveValue("60");
  await page.getByLabel("Rates over").selectOption("1");
  await expect(page).toHaveURL(/over=1$/);
  await expect(page.getByText(/Detailed updates/)).toBeVisible();
});

test("a losing rule is named with its reason and marked on charts", async ({ page }) => {
  const key = { callerService: "gateway", callerCluster: "*", calleeService: "orders", calleeMethod: "*" };
  await live(page, ROUTE);
  await expect(page.getByTestId("winner")).toContainText("applies");
  try {
    await rules.putRule({ rule: { key, policy: { mode: Mode.OBSERVE } }, options: { author: "playwright", reason: "a mark" } });
    await expect(page.locator(".loser")).toContainText("gateway * orders *");
    const change = page.locator(".touches li").filter({ hasText: "a mark" }).first();
    await expect(change).toContainText(/rule (created|changed).*playwright/s);
    await expect(page.locator(".mark").first()).toBeVisible();
    await change.getByRole("link").click();
    await expect(page).toHaveURL(/\/history\?rev=\d+$/);
  } finally {
    await rules.deleteRule({ key }).catch(() => undefined);
  }
});

test("fates have a meaning, and gates a state", async ({ page }) => {
  await live(page, ROUTE);
  await expect(page.locator("table.route-fates").getByText("The first attempt succeeded.")).toBeVisible();
  await expect(page.locator('[data-gate="breaker"]')).toContainText(/against .* successes in 10 s.*successful calls pay for one failed retry/s);
  await expect(page.getByText(/sustained maximum while calls fail/)).toBeVisible();
  await expect(page.getByRole("link", { name: /Stop retries to orders/ })).toHaveAttribute("href", "/kill?callee=orders");
});

// No call through the whole chain is answered in a millisecond.
test.describe("with calls that fail", () => {
  const key = { callerService: "gateway", callerCluster: "default", calleeService: "orders", calleeMethod: "shop.v1.Orders/Place" };
  const policy = { mode: Mode.ENFORCE, timeout: { nanos: 1_000_000 } };
  const options = { author: "playwright", reason: "calls must fail" };
  test.beforeAll(async () => { await rules.putRule({ rule: { key, policy }, options }); });
  test.afterAll(async () => { await rules.deleteRule({ key }); });

  test("failed calls show attempts and traces, and pause while read", async ({ page }) => {
    await live(page, ROUTE);
    const section = page.getByRole("region", { name: /Failed calls/ });
    const rows = section.locator("tr.failure");
    await expect(rows.first()).toContainText("DEADLINE_EXCEEDED", { timeout: 20_000 });
    await expect(rows.first().locator(".trace code")).toHaveText(/^[0-9a-f]{32}$/);
    // By keyboard alone.
    const opener = rows.first().getByRole("button", { name: /ago/ });
    await opener.focus();
    await page.keyboard.press("Enter");
    await expect(opener).toHaveAttribute("aria-expanded", "true");
    await expect(section.locator(".waterfall li").first()).toContainText(/sent at 0 ms\s*DEADLINE_EXCEEDED after .*: .*time limit/);
    const trace = await rows.first().locator(".trace code").innerText();
    // Calls keep failing, and the row keeps its place until newer ones are requested.
    const newer = section.getByRole("button", { name: /^Show \d+ newer$/ });
    await expect(newer).toBeVisible({ timeout: 20_000 });
    await expect(rows.first().locator(".trace code")).toHaveText(trace);
    await newer.click();
    await expect(rows.first().locator(".trace code")).not.toHaveText(trace);
  });

  test("failed calls are accessible, also with an open one", async ({ page }) => {
    await live(page, ROUTE);
    const row = page.locator("tr.failure").first();
    await expect(row).toBeVisible({ timeout: 20_000 });
    await row.getByRole("button", { name: /ago/ }).click();
    await expect(page.locator(".waterfall")).toBeVisible();
    await expectSound(page);
  });
});
