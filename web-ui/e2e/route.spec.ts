// One route: its figures by the second, what was changed, why it is so.
import { Mode } from "../gen/damper/v1/policy_pb";
import { expectSound } from "./accessibility";
import { expect, live, opened, routeRow, rules, test } from "./setup";

const ROUTE = "/route?caller=gateway&cluster=default&callee=orders&method=shop.v1.Orders%2FPlace";

test("a row of the overview leads to its route, whose charts begin with what was seen before", async ({ page }) => {
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
  // A span is ten seconds, and told once all processes have had the time to report it.
  await expect(async () => {
    await page.goto(ROUTE);
    const chart = page.getByRole("img", { name: /^Attempts\/s.*now \d/ });
    await expect(chart).toBeVisible();
    const loadedAt = await page.evaluate(() => performance.timeOrigin / 1000);
    expect(Number(await chart.getAttribute("data-oldest"))).toBeLessThan(loadedAt - 10);
  }).toPass({ timeout: 60_000 });
});

test("it is watched by a stream of its own while it is seen, and no longer", async ({ page }) => {
  await live(page, ROUTE);
  await expect(page.getByText(/Detailed updates/)).toBeVisible();
  const before = await page.getByText(/\d total$/).first().innerText();
  await expect.poll(() => page.getByText(/\d total$/).first().innerText(), { intervals: [500] }).not.toBe(before);
  const ended = page.waitForEvent("requestfailed", (request) => request.url().endsWith("/Watch"));
  await page.getByRole("link", { name: "Rules", exact: true }).click();
  await ended;
});

test("over how long rates are taken stays in the address", async ({ page }) => {
  await live(page, `${ROUTE}&over=60`);
  await expect(page.getByLabel("Rates over")).toHaveValue("60");
  await page.getByLabel("Rates over").selectOption("1");
  await expect(page).toHaveURL(/over=1$/);
  await expect(page.getByText(/Detailed updates/)).toBeVisible();
});

test("a rule that matches and loses is named with the reason, and marked where it came", async ({ page }) => {
  const key = { callerService: "gateway", callerCluster: "*", calleeService: "orders", calleeMethod: "*" };
  await live(page, ROUTE);
  await expect(page.getByTestId("winner")).toContainText("applies");
  try {
    await rules.putRule({ rule: { key, policy: { mode: Mode.OBSERVE } }, options: { author: "playwright", reason: "a mark" } });
    await expect(page.locator(".loser")).toContainText("gateway * orders *");
    const told = page.locator(".touches li").filter({ hasText: "a mark" }).first();
    await expect(told).toContainText(/rule (created|changed).*playwright/s);
    await expect(page.locator(".mark").first()).toBeVisible();
    await told.getByRole("link").click();
    await expect(page).toHaveURL(/\/history\?rev=\d+$/);
  } finally {
    await rules.deleteRule({ key }).catch(() => undefined);
  }
});

test("fates are said with what they mean, and gates with where they stand", async ({ page }) => {
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

  test("failed calls are shown with their attempts and traces, and stand still while they are read", async ({ page }) => {
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
    // Calls go on failing, and the row stays where it is until it is asked for newer ones.
    const newer = section.getByRole("button", { name: /^Show \d+ newer$/ });
    await expect(newer).toBeVisible({ timeout: 20_000 });
    await expect(rows.first().locator(".trace code")).toHaveText(trace);
    await newer.click();
    await expect(rows.first().locator(".trace code")).not.toHaveText(trace);
  });

  test("the failed calls are sound, also with one open", async ({ page }) => {
    await live(page, ROUTE);
    const row = page.locator("tr.failure").first();
    await expect(row).toBeVisible({ timeout: 20_000 });
    await row.getByRole("button", { name: /ago/ }).click();
    await expect(page.locator(".waterfall")).toBeVisible();
    await expectSound(page);
  });
});
