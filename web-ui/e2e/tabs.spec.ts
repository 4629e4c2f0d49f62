// More tabs than the six connections that a browser opens to a server over HTTP/1.1.
import type { Page } from "@playwright/test";
import { Mode } from "../gen/damper/v1/policy_pb";
import { expect, live, ownKey, rules, say, test } from "./setup";

const TABS = 7;

test("seven tabs are all live, and the last of them saves", async ({ page, context }) => {
  const key = ownKey("browser-test");
  const { callerService: caller, callerCluster: cluster, calleeService: callee, calleeMethod: method } = key;
  await rules.putRule({ rule: { key, policy: { mode: Mode.OBSERVE, retry: { maxAttempts: 2 } } } });
  try {
    const others: Page[] = [];
    for (let tab = 1; tab < TABS; tab += 1) {
      const other = await context.newPage();
      await live(other, `/rules?q=${encodeURIComponent(method)}`);
      others.push(other);
    }
    await live(page, `/rule?${new URLSearchParams({ caller, cluster, callee, method }).toString()}`);
    await page.locator('[data-field="retry.max_attempts"]').getByRole("textbox").fill("5");
    await page.getByRole("button", { name: "Review 1 change…" }).click();
    await say(page.getByRole("dialog"));
    await page.getByRole("dialog").getByRole("button", { name: "Save" }).click();
    await expect(page.getByTestId("convergence")).toBeVisible();
    expect((await rules.getRule({ key })).policy?.retry?.maxAttempts).toBe(5);
    for (const other of others) {
      await expect(other.locator("table.rules tbody tr").first().locator('[data-label="Attempts"]')).toHaveText("5");
      await expect(other.getByTestId("liveness")).toContainText("live");
    }
  } finally {
    await rules.deleteRule({ key });
  }
});
