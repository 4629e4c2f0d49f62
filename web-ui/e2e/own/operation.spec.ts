// A database statement as a route: a real service with a governed operation.
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { at, expect, live, say, test as base } from "./setup";

const KEY = { callerService: "shop", callerCluster: "default", calleeService: "orders-db", calleeMethod: "orders/insert" };
const NAMES = [["Caller", KEY.callerService], ["Cluster", KEY.callerCluster], ["Callee", KEY.calleeService], ["Method", KEY.calleeMethod]] as const;

const test = base.extend<{ shop: ChildProcess }>({
  shop: [async ({ served }, use) => {
    const binary = process.env["DAMPER_OPERATION"];
    if (!binary) throw new Error("set DAMPER_OPERATION to the binary of the service");
    const shop = spawn(binary, [served.url], { stdio: "ignore" });
    await use(shop);
    shop.kill("SIGKILL");
  }, { auto: true }],
});

test("an operation of a database is found, ruled, explained and killed", async ({ page }) => {
  test.slow();
  await live(page, "/uncovered");
  const route = page.locator(`tr[data-route="${Object.values(KEY).join(" ")}"]`);
  await expect(route.locator('[data-label="Calls/s"]')).toHaveText(/[1-9]/, { timeout: 30_000 });

  await live(page, "/rule?new=1");
  for (const [label, value] of NAMES) await page.getByLabel(label, { exact: true }).fill(value);
  await page.locator('[data-field="mode"]').getByRole("combobox").selectOption("MODE_ENFORCE");
  await page.locator('[data-field="retry.max_attempts"]').getByRole("textbox").fill("3");
  await expect(page.getByText("Valid")).toBeVisible();
  await page.getByRole("button", { name: /Review/ }).click();
  const review = page.getByRole("dialog");
  await say(review);
  await review.getByRole("button", { name: "Save" }).click();
  await expect(page.getByTestId("convergence")).toContainText("applied by the only client");

  await live(page, at("/route", KEY));
  await expect(page.getByRole("rowheader", { name: "ok after a retry" })).toBeVisible({ timeout: 30_000 });
  await expect(page.getByTestId("last-change")).toContainText("a browser test");

  await live(page, "/kill?callee=orders-db&minutes=15");
  await say(page);
  await page.getByRole("button", { name: "Stop retries…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Stop retries now" }).click();
  await expect(page.getByTestId("convergence")).toContainText("applied by the only client");
  await live(page, at("/route", KEY));
  await expect(page.getByTestId("kill").first()).toContainText("retries to orders-db are stopped");
  await expect(page.getByRole("rowheader", { name: "failed under a kill switch" })).toBeVisible({ timeout: 30_000 });
});
