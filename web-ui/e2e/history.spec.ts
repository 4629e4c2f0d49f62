// History: changes, comparison, rollback and downloads.
import { readFile } from "node:fs/promises";
import { Mode } from "../gen/damper/v1/policy_pb";
import { changes, expect, live, ownKey, rules, say, test } from "./setup";

type Key = ReturnType<typeof ownKey>;

async function put(key: Key, maxAttempts: number, reason: string): Promise<bigint> {
  const { revision } = await rules.putRule({ rule: { key, policy: { mode: Mode.OBSERVE, retry: { maxAttempts } } }, options: { author: "ann", reason } });
  return revision;
}

const only = ({ calleeMethod }: Key) => `/history?q=${encodeURIComponent(calleeMethod)}`;

test("a change appears at once with author, reason and values", async ({ page }) => {
  const key = ownKey("browser-test");
  try {
    const first = await put(key, 2, "a first look");
    await live(page, only(key));
    await expect(page.locator(`tr[data-revision="${first}"]`)).toContainText("rule created");
    // Without a reload.
    const second = await put(key, 4, "more of it");
    const row = page.locator(`tr[data-revision="${second}"]`);
    await expect(row).toContainText(/ann.*retry\.max_attempts 2 → 4.*more of it/s);
    await expect(row.locator('[data-label="When"]')).toContainText(/\d{2}:\d{2}:\d{2} \S+/);
    await row.getByRole("link", { name: String(second) }).click();
    await expect(page.getByTestId("difference")).toContainText(/max_attempts.*2.*4/s);
    await page.goBack();
    await expect(row).toBeVisible();
  } finally {
    await rules.deleteRule({ key }).catch(() => undefined);
  }
});

test("a rollback shows its effect and is sent once per double click", async ({ page }) => {
  const key = ownKey("browser-test");
  try {
    await put(key, 2, "a first look");
    const second = await put(key, 4, "more of it");
    await live(page, `${only(key)}&rev=${second}`);
    await page.getByRole("button", { name: /Undo this change/ }).click();
    const dialog = page.getByRole("dialog");
    await expect(dialog.getByTestId("difference")).toContainText(/max_attempts.*4.*2/s);
    await say(dialog, "it was too much");
    await dialog.getByRole("button", { name: "Roll back" }).dblclick();
    await expect(page.getByTestId("convergence")).toContainText(/applied by (all \d+ clients|the only client)/);
    const now = await rules.getRule({ key });
    expect(now.policy?.retry?.maxAttempts).toBe(2);
    const { changes: list } = await changes.listChanges({ filter: { names: { text: key.calleeMethod } } });
    expect(list.map(({ reason }) => reason)).toEqual(["it was too much", "more of it", "a first look"]);
  } finally {
    await rules.deleteRule({ key }).catch(() => undefined);
  }
});

test("a rollback after a concurrent change writes nothing", async ({ page }) => {
  const key = ownKey("browser-test");
  try {
    await put(key, 2, "a first look");
    const second = await put(key, 4, "more of it");
    await live(page, `${only(key)}&rev=${second}`);
    await page.getByRole("button", { name: /Undo this change/ }).click();
    const dialog = page.getByRole("dialog");
    await expect(dialog.getByRole("button", { name: "Roll back" })).toBeEnabled();
    await put(key, 5, "another operator");
    await say(dialog);
    await dialog.getByRole("button", { name: "Roll back" }).click();
    await expect(dialog).toContainText("nothing was written");
    await expect(dialog.getByTestId("difference")).toContainText(/max_attempts.*5.*2/s);
    expect((await rules.getRule({ key })).policy?.retry?.maxAttempts).toBe(5);
    await page.keyboard.press("Escape");
    await expect(dialog).toHaveCount(0);
    await expect(page.getByRole("button", { name: /Undo this change/ })).toBeFocused();
  } finally {
    await rules.deleteRule({ key }).catch(() => undefined);
  }
});

test("any two revisions are compared, and a link shows the same", async ({ page }) => {
  const key = ownKey("browser-test");
  try {
    const first = await put(key, 2, "a first look");
    const second = await put(key, 4, "more of it");
    await live(page, only(key));
    await page.getByLabel(`Compare revision ${second}`).check();
    await page.getByLabel(`Compare revision ${first}`).check();
    await page.getByRole("link", { name: `Compare ${first} with ${second}` }).click();
    const subject = page.locator(`[data-subject="rule ${Object.values(key).join(" ")}"]`);
    await expect(subject).toContainText(/max_attempts.*2.*4/s);
    await page.reload();
    await expect(subject).toContainText(/max_attempts.*2.*4/s);
  } finally {
    await rules.deleteRule({ key }).catch(() => undefined);
  }
});

test("the audit log and an export are files", async ({ page }) => {
  await live(page, "/history");
  const file = async (name: RegExp) => {
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name }).click()]);
    return { name: download.suggestedFilename(), text: await readFile(await download.path(), "utf8") };
  };
  const log = await file(/audit log/);
  expect(log.name).toBe("damper-audit.jsonl");
  const lines = log.text.trim().split("\n").map((line) => JSON.parse(line) as { revision: number });
  expect(lines.length).toBeGreaterThan(0);
  const all = await file(/Export rules and guards/);
  expect(all.name).toMatch(/^damper-revision-\d+\.yaml$/);
  expect(all.text).toContain("---\nkind: Rule\nkey:\n");
});
