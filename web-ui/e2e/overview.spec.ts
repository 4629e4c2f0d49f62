// The Overview: verdict, statistics and routes.
import { expect, HOPS, opened, routeRow, test } from "./setup";

test("every hop of the demo is a row with its amplification", async ({ page }) => {
  await opened(page);
  for (const [caller, callee] of HOPS) {
    const row = routeRow(page, caller, callee);
    await expect(row.getByTestId("amplification")).toHaveText(/^×\d+\.\d\d$/);
    await expect(row.locator('[data-label="Calls/s"]')).toHaveText(/\d/);
  }
  await expect(page.getByTestId("fleet-amplification")).toHaveText(/^×\d+\.\d\d$/);
});

test("statistics change without a reload", async ({ page }) => {
  await opened(page);
  const figures = async () => {
    const texts = HOPS.map(([caller, callee]) => routeRow(page, caller, callee).innerText());
    return (await Promise.all(texts)).join("\n");
  };
  await page.evaluate(() => document.body.setAttribute("data-loaded", "once"));
  const before = await figures();
  await expect.poll(figures).not.toBe(before);
  await expect(page.locator("body")).toHaveAttribute("data-loaded", "once");
});

test("a link brings back filter and sorting, and Back works", async ({ page }) => {
  await page.goto("/?q=stock&sort=-attempts");
  const search = page.getByRole("searchbox");
  await expect(search).toHaveValue("stock");
  await expect(routeRow(page, "inventory", "stock")).toBeVisible();
  await expect(routeRow(page, "gateway", "orders")).toHaveCount(0);
  const routes = page.locator("table.routes");
  await expect(routes.getByRole("columnheader", { name: "Attempts/s" })).toHaveAttribute("aria-sort", "descending");
  await routes.getByRole("button", { name: "Caller" }).click();
  await expect(page).toHaveURL(/sort=caller/);
  await page.goBack();
  await expect(routes.getByRole("columnheader", { name: "Attempts/s" })).toHaveAttribute("aria-sort", "descending");
  await search.press("Escape");
  await expect(routeRow(page, "gateway", "orders")).toBeVisible();
});

test("the verdict follows from the routes", async ({ page }) => {
  await opened(page);
  const verdict = page.getByTestId("verdict");
  await expect(verdict).toHaveAttribute("data-level", /storm|failing|calm/);
  const high = await page.locator("table.routes tr.high").count();
  if (high > 0) await expect(verdict).toContainText(/storm/);
});
