// Rules: listed, saved, reviewed, in conflict, undone.
import { Mode } from "../gen/damper/v1/policy_pb";
import { expectSound } from "./accessibility";
import { expect, live, ownKey, rules, say, test } from "./setup";

const NEW = "/rule?new=1";

async function fill(page: import("@playwright/test").Page, key: ReturnType<typeof ownKey>): Promise<void> {
  for (const [label, value] of [["Caller", key.callerService], ["Cluster", key.callerCluster], ["Callee", key.calleeService], ["Method", key.calleeMethod]] as const) {
    await page.getByLabel(label, { exact: true }).fill(value);
  }
}

function href(key: ReturnType<typeof ownKey>): string {
  const { callerService: caller, callerCluster: cluster, calleeService: callee, calleeMethod: method } = key;
  return `/rule?${new URLSearchParams({ caller, cluster, callee, method }).toString()}`;
}

test("a rule of the API appears with its delivery, and disappears", async ({ page }) => {
  const key = ownKey("browser-test");
  await live(page, "/rules");
  const row = page.locator(`tr[data-rule="${Object.values(key).join(" ")}"]`);
  await expect(row).toHaveCount(0);
  // The list may be long: the filter brings the row to the first page.
  await page.keyboard.press("/");
  await page.keyboard.type(key.calleeMethod);
  await expect(page.getByText("No rule matches")).toBeVisible();
  try {
    const policy = { mode: Mode.OBSERVE, retry: { maxAttempts: 4 } };
    const { rule } = await rules.putRule({ rule: { key, policy } });
    await expect(row).toBeVisible();
    await expect(row.locator('[data-label="Mode"]')).toHaveText("observe");
    await expect(row.locator('[data-label="Attempts"]')).toHaveText("4");
    await expect(row.locator('[data-label="Revision"]')).toContainText(String(rule?.revision));
    // The demo's gateway is connected and matches, so all apply it.
    await expect.poll(async () => {
      const [, applied, of] = /(\d+) of (\d+)/.exec(await row.getByTestId("applied").innerText()) ?? [];
      return of !== undefined && Number(of) > 0 && applied === of;
    }).toBe(true);
  } finally {
    await rules.deleteRule({ key });
  }
  await expect(row).toHaveCount(0);
});

test("a rule is saved with errors at fields, a review and its delivery", async ({ page }) => {
  const key = ownKey("browser-test");
  await live(page, NEW);
  await fill(page, key);
  try {
    const field = page.locator('[data-field="retry.max_attempts"]');
    await field.getByRole("textbox").fill("99");
    await expect(field).toContainText(/between 1 and 10, not 99/);
    await expect(page.getByRole("button", { name: /Review/ })).toBeDisabled();
    await field.getByRole("textbox").fill("4");
    await expect(page.getByText("Valid")).toBeVisible();
    await page.getByRole("button", { name: /Review/ }).click();
    const review = page.getByRole("dialog");
    await expect(review).toContainText("retry.max_attempts");
    await say(review);
    await review.getByRole("button", { name: "Save" }).dblclick();
    await expect(page.getByTestId("convergence")).toContainText(/Stored at revision \d+, applied by (all \d+ clients|the only client)/);
    const written = await rules.getRule({ key });
    expect(written.policy?.retry?.maxAttempts).toBe(4);
    await page.getByRole("button", { name: "Delete the rule…" }).click();
    await say(page.getByRole("dialog"));
    await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
    await expect(page.getByText("The rule was deleted.")).toBeVisible();
  } finally {
    await rules.deleteRule({ key }).catch(() => undefined);
  }
});

test("higher amplification is shown before a rule is saved", async ({ page }) => {
  const key = { callerService: "*", callerCluster: "*", calleeService: "stock", calleeMethod: "shop.v1.Stock/Take" };
  await live(page, href(key));
  await expect(page.getByText("Valid")).toBeVisible();
  await page.locator('[data-field="mode"]').getByRole("combobox").selectOption("MODE_ENFORCE");
  await page.locator('[data-field="retry.max_attempts"]').getByRole("textbox").fill("9");
  const amplified = page.getByTestId("amplified");
  await expect(amplified).toContainText(/▲ Up:\s+Attempts on this hop at most \d →to 9 per call/);
  await expect(amplified).toContainText(/Attempts along gateway → orders → inventory → stock at most \d+ →to \d+ per request/);
});

test("the review predicts load and success", async ({ page }) => {
  const key = { callerService: "*", callerCluster: "*", calleeService: "stock", calleeMethod: "shop.v1.Stock/Take" };
  await live(page, href(key));
  await expect(page.getByText("Valid")).toBeVisible();
  await page.locator('[data-field="mode"]').getByRole("combobox").selectOption("MODE_ENFORCE");
  await page.locator('[data-field="retry.max_attempts"]').getByRole("textbox").fill("9");
  await page.getByRole("button", { name: /Review/ }).click();
  const section = page.getByTestId("what-if");
  await expect(section).toContainText(/A simulation of .*, from the statistics of the last minute: [\d.,]+ calls\/s/);
  await expect(section.locator("tbody th")).toHaveText(["as measured", "at least 10 % failing", "in total outage"]);
  await expect(section.getByRole("row", { name: /in total outage/ })).toContainText(/in total outage\s*[\d.,]+.*0 %/);
  await expectSound(page);
});

test("a concurrent change is shown, and the draft is kept", async ({ page }) => {
  const key = ownKey("browser-test");
  const policy = { mode: Mode.OBSERVE, retry: { maxAttempts: 2 } };
  try {
    await rules.putRule({ rule: { key, policy } });
    await live(page, href(key));
    await page.locator('[data-field="retry.max_attempts"]').getByRole("textbox").fill("5");
    await rules.putRule({ rule: { key, policy: { mode: Mode.ENFORCE, retry: { maxAttempts: 3 } } }, options: { author: "another operator" } });
    const conflict = page.getByTestId("conflict");
    await expect(conflict).toContainText("another operator changed this rule meanwhile");
    await expect(conflict.getByRole("row", { name: /Max attempts/ })).toContainText(/both.*2.*3.*5/);
    await conflict.getByRole("button", { name: "Keep my changes" }).click();
    await expect(page.locator('[data-field="mode"]').getByRole("combobox")).toHaveValue("MODE_ENFORCE");
    await page.getByRole("button", { name: "Review 1 change…" }).click();
    await say(page.getByRole("dialog"));
    await page.getByRole("dialog").getByRole("button", { name: "Save" }).click();
    await expect(page.getByTestId("convergence")).toBeVisible();
    const written = await rules.getRule({ key });
    expect([written.policy?.mode, written.policy?.retry?.maxAttempts]).toEqual([Mode.ENFORCE, 5]);
  } finally {
    await rules.deleteRule({ key });
  }
});

test("leaving unsaved edits needs a confirmation", async ({ page }) => {
  const key = ownKey("browser-test");
  try {
    await rules.putRule({ rule: { key, policy: { mode: Mode.OBSERVE } } });
    await live(page, "/rules?q=" + encodeURIComponent(key.calleeMethod));
    await page.locator("table.rules tbody a").first().click();
    const timeout = page.locator('[data-field="timeout"]').getByRole("textbox");
    await timeout.fill("2s");
    await page.goBack();
    await expect(page.getByRole("dialog")).toContainText("Leave without saving?");
    await page.keyboard.press("Escape");
    await expect(timeout).toHaveValue("2s");
    await page.getByRole("link", { name: "Clients" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Leave" }).click();
    await expect(page).toHaveURL(/\/clients$/);
  } finally {
    await rules.deleteRule({ key });
  }
});
