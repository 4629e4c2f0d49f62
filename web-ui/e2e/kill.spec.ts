// The kill switch: its banner, setting and ending it.
import { expect, kills, live, opened, say, test } from "./setup";

test("a kill switch in force is shown on every page", async ({ page }) => {
  const key = { callerService: "*", callerCluster: "*", calleeService: `browser-test-${Date.now()}`, calleeMethod: "*" };
  await opened(page);
  const banner = page.getByTestId("kill").filter({ hasText: key.calleeService });
  await expect(banner).toHaveCount(0);
  try {
    await kills.kill({ key, options: { reason: "a browser test", author: "playwright" } });
    await expect(banner).toContainText(/retries to browser-test-\d+ are stopped, until .* left/);
    await expect(banner).toContainText("a browser test");
    await expect(banner).toContainText(`damper unkill --callee '${key.calleeService}'`);
  } finally {
    await kills.unkill({ key });
  }
  await expect(banner).toHaveCount(0);
});

test("a kill is set with reason, reach and delivery, and ended", async ({ page }) => {
  const key = { callerService: "*", callerCluster: "*", calleeService: "stock", calleeMethod: "*" };
  await live(page, "/kill?callee=stock&minutes=15");
  try {
    await expect(page.getByTestId("reach")).toContainText(/Stop retries to stock: 1 known route,\s+4 connected clients/);
    const press = page.getByRole("button", { name: "Stop retries…" });
    await press.click();
    await expect(page.getByRole("dialog")).toHaveCount(0);
    await say(page);
    await press.click();
    const dialog = page.getByRole("dialog");
    await expect(dialog).toContainText(/no longer sent/);
    await dialog.getByRole("button", { name: "Stop retries now" }).dblclick();
    await expect(page.getByTestId("convergence")).toContainText(/applied by all 4 clients/);
    const row = page.locator('tr[data-kill="* * stock *"]');
    await expect(row).toContainText("a browser test");
    await expect(row.getByTestId("delivered")).toContainText(/all \d+/);
    expect((await kills.listKills({})).kills.filter(({ reason }) => reason === "a browser test")).toHaveLength(1);
    await row.getByRole("button", { name: "End it…" }).click();
    await say(page.getByRole("dialog"));
    await page.getByRole("dialog").getByRole("button", { name: "End it" }).click();
    await expect(row).toHaveCount(0);
  } finally {
    await kills.unkill({ key }).catch(() => undefined);
  }
});
