// A concurrent write arrives while a save is in flight: the save is rejected, both versions are shown, and
// the draft is kept. The stream cannot prevent it; the expected revision does.
import type { Page } from "@playwright/test";
import { Mode } from "../../gen/damper/v1/policy_pb";
import { at, expect, KEY, live, say, setting, test } from "./setup";

const theirs = { options: { author: "another operator" } };

// Presses Save, and completes the concurrent write first.
async function overtake(page: Page, write: string, other: () => Promise<unknown>): Promise<void> {
  let release = () => {};
  const released = new Promise<void>((resolve) => { release = resolve; });
  await page.getByRole("button", { name: /^Review/ }).click();
  const save = page.getByRole("dialog").getByRole("button", { name: "Save" });
  await expect(save).toBeEnabled();
  await say(page.getByRole("dialog"));
  await page.route(`**/${write}`, async (route) => {
    await released;
    await route.continue();
  });
  const sent = page.waitForRequest((request) => request.url().endsWith(`/${write}`));
  await save.click();
  await sent;
  await other();
  release();
}

test("a rule", async ({ page, api }) => {
  const rule = (maxAttempts: number) => ({ rule: { key: KEY, policy: { mode: Mode.OBSERVE, retry: { maxAttempts } } } });
  await api.rules.putRule(rule(2));
  await live(page, at("/rule"));
  await setting(page, "retry.max_attempts").fill("5");
  await overtake(page, "PutRule", () => api.rules.putRule({ ...rule(3), ...theirs }));
  await expect(page.getByTestId("conflict").getByRole("row", { name: /Max attempts/ })).toContainText(/both.*2.*3.*5/);
  await expect(setting(page, "retry.max_attempts")).toHaveValue("5");
  expect((await api.rules.getRule({ key: KEY })).policy?.retry?.maxAttempts).toBe(3);
});

test("a rule under review: the conflict is shown and Save disabled", async ({ page, api }) => {
  const rule = (maxAttempts: number) => ({ rule: { key: KEY, policy: { mode: Mode.OBSERVE, retry: { maxAttempts } } } });
  await api.rules.putRule(rule(2));
  await live(page, at("/rule"));
  await setting(page, "retry.max_attempts").fill("5");
  await page.getByRole("button", { name: /^Review/ }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByRole("button", { name: "Save" })).toBeEnabled();
  await api.rules.putRule({ ...rule(3), ...theirs });
  await expect(dialog).toContainText("another operator changed it meanwhile, at revision 2: close this dialog to compare.");
  await expect(dialog.getByRole("button", { name: "Save" })).toBeDisabled();
  await page.keyboard.press("Escape");
  await expect(page.locator("main")).toBeFocused();
  await expect(page.getByTestId("conflict")).toBeInViewport();
});

test("a guard", async ({ page, api }) => {
  const guard = (maxAttempts: number) => ({ guard: { key: KEY, ceiling: { maxAttempts } } });
  await api.guards.putGuard(guard(2));
  await live(page, at("/guard"));
  await page.getByLabel("Max attempts").fill("5");
  await overtake(page, "PutGuard", () => api.guards.putGuard({ ...guard(3), ...theirs }));
  await expect(page.getByTestId("conflict")).toContainText(/another operator changed this guard meanwhile.*max_attempts.*2.*3.*5/s);
  await expect(page.getByLabel("Max attempts")).toHaveValue("5");
  expect((await api.guards.getGuard({ key: KEY })).ceiling?.maxAttempts).toBe(3);
});
