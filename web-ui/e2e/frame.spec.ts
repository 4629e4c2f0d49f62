// What holds for every page: assistive technology, narrow windows, several tabs, nothing from elsewhere.
import { AxeBuilder } from "@axe-core/playwright";
import { expect, live, opened, test } from "./world";

const PAGES = ["/", "/rules", "/rule?new=1", "/clients", "/kill?callee=stock", "/chain",
  "/route?caller=gateway&cluster=default&callee=orders&method=shop.v1.Orders%2FPlace"];

for (const path of PAGES) {
  for (const colorScheme of ["light", "dark"] as const) {
    test(`nothing is wrong for assistive technology at ${path} in ${colorScheme}`, async ({ page }) => {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      await live(page, path);
      await expect(page.locator(".loading")).toHaveCount(0);
      // What the server says of a rule comes a moment after the form.
      if (path.startsWith("/rule?")) await expect(page.getByText(/Valid|can not be so/)).toBeVisible();
      const { violations } = await new AxeBuilder({ page }).analyze();
      expect(violations.map(({ id, nodes }) => [id, nodes.map(({ html }) => html)])).toEqual([]);
    });
  }

  test(`a narrow window does not scroll sideways at ${path}`, async ({ page }) => {
    await page.setViewportSize({ width: 420, height: 900 });
    await live(page, path);
    await expect(page.locator(".loading")).toHaveCount(0);
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(420);
  });
}

test("a second tab goes on when the first is closed", async ({ page, context }) => {
  await opened(page);
  const second = await context.newPage();
  await opened(second);
  await page.close();
  await expect(second.getByTestId("liveness")).toContainText("live");
  await second.close();
});

test("the policy for content allows nothing from elsewhere", async ({ request }) => {
  const answer = await request.get("/");
  expect(answer.ok()).toBe(true);
  expect(answer.headers()["content-security-policy"]).toContain("default-src 'self'");
});

test("an address that leads nowhere says so", async ({ page }) => {
  await live(page, "/nowhere");
  await expect(page.getByText("There is no page at this address.")).toBeVisible();
});
