// Guards: listed, saved, in conflict, and the rules that they limit.
import { Mode } from "../gen/damper/v1/policy_pb";
import { expectSound } from "./accessibility";
import { expect, guards, live, ownKey, rules, say, test } from "./setup";

type Key = ReturnType<typeof ownKey>;

function at({ callerService: caller, callerCluster: cluster, calleeService: callee, calleeMethod: method }: Key): string {
  return `/guard?${new URLSearchParams({ caller, cluster, callee, method }).toString()}`;
}

test("a guard is saved, lists the rules that it limits, and is deleted", async ({ page }) => {
  const key = ownKey("browser-test");
  try {
    await rules.putRule({ rule: { key, policy: { mode: Mode.OBSERVE, retry: { maxAttempts: 4 } } } });
    await live(page, at(key));
    await expect(page.getByText("New, not saved yet.")).toBeVisible();
    await page.getByLabel("Max attempts").fill("99");
    await expect(page.locator('[data-field="max_attempts"]')).toContainText(/between 1 and 10, not 99/);
    await page.getByLabel("Max attempts").fill("2");
    // Wider rules of other tests may be limited too.
    await expect(page.getByTestId("cuts")).toHaveText(/[1-9]/);
    await expect(page.getByRole("link", { name: Object.values(key).join(" ") }).first()).toHaveAttribute("href", /^\/rule\?/);
    await page.getByLabel("Owner").fill("team-browser");
    await page.getByRole("button", { name: "Review and save…" }).click();
    const dialog = page.getByRole("dialog");
    await expect(dialog.getByTestId("difference")).toContainText(/ceiling\.max_attempts.*2.*owner.*team-browser/s);
    await say(dialog);
    await dialog.getByRole("button", { name: "Save" }).dblclick();
    await expect(page.getByTestId("convergence")).toContainText(/Stored at revision \d+/);
    expect(await guards.getGuard({ key })).toMatchObject({ owner: "team-browser", ceiling: { maxAttempts: 2 } });
    await page.getByRole("button", { name: "Delete the guard…" }).click();
    await say(page.getByRole("dialog"));
    await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
    await expect(page.getByText("The guard was deleted.")).toBeVisible();
  } finally {
    await guards.deleteGuard({ key }).catch(() => undefined);
    await rules.deleteRule({ key }).catch(() => undefined);
  }
});

test("a concurrent change is shown, and the draft is kept", async ({ page }) => {
  const key = ownKey("browser-test");
  try {
    await guards.putGuard({ guard: { key, ceiling: { maxAttempts: 2 } } });
    await live(page, at(key));
    await page.getByLabel("Max attempts").fill("5");
    await guards.putGuard({ guard: { key, ceiling: { maxAttempts: 3 }, owner: "team-else" }, options: { author: "another operator" } });
    const conflict = page.getByTestId("conflict");
    await expect(conflict).toContainText(/another operator changed this guard meanwhile.*max_attempts.*2.*3.*5/s);
    await expect(page.getByLabel("Max attempts")).toHaveValue("5");
    await conflict.getByRole("button", { name: "Keep my changes" }).click();
    await expect(page.getByLabel("Owner")).toHaveValue("team-else");
    await page.getByRole("button", { name: "Review and save…" }).click();
    await say(page.getByRole("dialog"));
    await page.getByRole("dialog").getByRole("button", { name: "Save" }).click();
    await expect(page.getByTestId("convergence")).toBeVisible();
    expect(await guards.getGuard({ key })).toMatchObject({ owner: "team-else", ceiling: { maxAttempts: 5 } });
  } finally {
    await guards.deleteGuard({ key }).catch(() => undefined);
  }
});

test("the list finds a guard, by keyboard, and the link leads to it", async ({ page }) => {
  const key = ownKey("browser-test");
  try {
    await guards.putGuard({ guard: { key, ceiling: { maxAttempts: 2 } } });
    await live(page, "/guards");
    await page.keyboard.press("/");
    await page.keyboard.type(key.calleeMethod);
    const row = page.locator(`tr[data-guard="${Object.values(key).join(" ")}"]`);
    await expect(row).toContainText("2");
    await expect(page.locator("tbody tr")).toHaveCount(1);
    await row.getByRole("link").focus();
    await page.keyboard.press("Enter");
    await expect(page.getByLabel("Max attempts")).toHaveValue("2");
  } finally {
    await guards.deleteGuard({ key }).catch(() => undefined);
  }
});

test("a guard with a retry limit is accessible in list and editor", async ({ page }) => {
  // A retry limit is for all callers.
  const key = { ...ownKey("browser-test"), callerService: "*" };
  try {
    await guards.putGuard({ guard: { key, ceiling: { maxAttempts: 2, repeatLimit: {} } } });
    for (const path of ["/guards", at(key)]) {
      await live(page, path);
      await expect(page.getByText(key.calleeMethod).first()).toBeVisible();
      await expectSound(page);
    }
  } finally {
    await guards.deleteGuard({ key }).catch(() => undefined);
  }
});
