// The Chain page: picture, table, and a selected service.
import { expect, HOPS, live, test } from "./setup";

test("every hop of the demo is a line and a row with its amplification", async ({ page }) => {
  await live(page, "/chain");
  for (const [caller, callee] of HOPS) {
    const line = page.locator(`svg.chain [data-edge="${caller} ${callee}"]`);
    await expect(line).toHaveAttribute("aria-label", new RegExp(`${caller} calls ${callee} .* at most \\d+ attempts per call`));
    await expect(page.locator(`table.edges [data-edge="${caller} ${callee}"]`)).toContainText(/×\d\.\d\d/);
  }
  await expect(page.getByTestId("worst-measured")).toContainText(/×\d+\.\d\d/);
  await expect(page.getByTestId("worst-possible")).toContainText(/≤ \d+/);
});

test("callers stand left of their callees, and no poll moves them", async ({ page }) => {
  await live(page, "/chain");
  const places = () =>
    page.locator("svg.chain .service").evaluateAll((nodes) =>
      nodes.map((node) => `${node.getAttribute("data-service") ?? ""} ${node.querySelector("rect")?.getAttribute("x") ?? ""} ${node.querySelector("rect")?.getAttribute("y") ?? ""}`));
  await expect.poll(async () => (await places()).length).toBeGreaterThanOrEqual(4);
  const before = await places();
  const x = (name: string) => Number(before.find((place) => place.startsWith(`${name} `))?.split(" ")[1]);
  for (const [caller, callee] of HOPS) expect(x(caller)).toBeLessThan(x(callee));
  await page.waitForResponse((answer) => answer.url().endsWith("/GetChain"));
  await page.waitForResponse((answer) => answer.url().endsWith("/GetChain"));
  expect(await places()).toEqual(before);
});

test("a selected service is in the address, and Back shows all", async ({ page }) => {
  await live(page, "/chain");
  const first = page.locator('svg.chain .service[tabindex="0"]');
  await first.focus();
  await expect(first).toHaveAttribute("data-service", "gateway");
  await page.keyboard.press("ArrowRight");
  await expect(page.locator('svg.chain [data-service="orders"]')).toBeFocused();
  await page.keyboard.press("Enter");
  await expect(page).toHaveURL(/\/chain\?service=orders$/);
  await expect(page.getByText("Calls to and from orders")).toBeVisible();
  await page.goBack();
  await expect(page).toHaveURL(/\/chain$/);
});

test("a line leads to its route", async ({ page }) => {
  await live(page, "/chain");
  await page.locator('table.edges [data-edge="inventory stock"]').getByRole("link", { name: /Take/ }).click();
  await expect(page).toHaveURL(/\/route\?caller=inventory&cluster=default&callee=stock&method=/);
  await expect(page.getByRole("heading", { level: 1 })).toHaveText("Route");
});
