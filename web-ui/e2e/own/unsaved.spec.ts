// Unsaved edits survive a link, Back, a reload and a closed tab.
import type { Page } from "@playwright/test";
import { Mode } from "../../gen/damper/v1/policy_pb";
import { expectSound } from "../accessibility";
import { KEY, at, expect, live, say, setting, test } from "./setup";

// Runs the action, dismisses the browser's dialog and returns its type.
async function refused(page: Page, slip: () => Promise<unknown>): Promise<string> {
  const [dialog] = await Promise.all([page.waitForEvent("dialog"), slip()]);
  await dialog.dismiss();
  return dialog.type();
}

for (const [what, path, fieldOf] of [
  ["rule", at("/rule"), (page: Page) => setting(page, "retry.max_attempts")],
  ["guard", at("/guard"), (page: Page) => page.getByLabel("Max attempts")],
] as const) {
  test(`leaving an edited ${what} needs a confirmation, a saved one does not`, async ({ page, api }) => {
    await api.rules.putRule({ rule: { key: KEY, policy: { mode: Mode.OBSERVE, retry: { maxAttempts: 2 } } } });
    await api.guards.putGuard({ guard: { key: KEY, ceiling: { maxAttempts: 8 } } });
    await live(page, `/${what}s`);
    await page.getByRole("row").filter({ hasText: KEY.calleeMethod }).getByRole("link").first().click();
    await expect(page).toHaveURL(path);
    const field = fieldOf(page);
    await field.fill("5");

    const asks = page.getByRole("dialog").filter({ hasText: "Leave without saving?" });
    await page.getByRole("link", { name: "Clients" }).click();
    await expect(asks).toBeVisible();
    await expectSound(page);
    await asks.getByRole("button", { name: "Cancel" }).click();
    await page.goBack();
    await expect(asks).toBeVisible();
    await page.keyboard.press("Escape");
    await expect(page).toHaveURL(path);
    expect(await refused(page, () => page.evaluate(() => { setTimeout(() => { location.reload(); }); }))).toBe("beforeunload");
    expect(await refused(page, () => page.close({ runBeforeUnload: true }))).toBe("beforeunload");
    await expect(field).toHaveValue("5");

    await page.getByRole("button", { name: /^Review/ }).click();
    await say(page.getByRole("dialog"));
    await page.getByRole("dialog").getByRole("button", { name: "Save" }).click();
    await expect(page.getByTestId("convergence")).toBeVisible();
    await page.getByRole("link", { name: "Clients" }).click();
    await expect(page).toHaveURL(/\/clients$/);

    await page.goBack();
    await field.fill("6");
    await page.getByRole("link", { name: "History", exact: true }).click();
    await asks.getByRole("button", { name: "Leave" }).click();
    await expect(page).toHaveURL(/\/history$/);
  });
}

test("leaving a new rule with a name needs a confirmation", async ({ page }) => {
  await live(page, "/rule?new=1");
  await page.getByRole("link", { name: "Clients" }).click();
  await expect(page).toHaveURL(/\/clients$/);
  await page.goBack();
  await page.getByLabel("Callee").fill("orders");
  await page.getByRole("link", { name: "Clients" }).click();
  await expect(page.getByRole("dialog")).toContainText("Leave without saving?");
});
