// The server is killed under open pages and started again, or the connection stalls.
import type { Page } from "@playwright/test";
import { Mode } from "../../gen/damper/v1/policy_pb";
import { heed } from "../browser_errors";
import { KEY, at, expect, live, say, setting, test } from "./setup";
import { Wire } from "./proxy";

// The time after which an open page must be marked stale.
const WITHIN = { timeout: 12_000 };
const OTHER = { ...KEY, calleeService: "stock" };
const POLICY = { mode: Mode.OBSERVE, retry: { maxAttempts: 2 } };
const REPORT = { routes: [{ calleeService: "orders", calleeMethod: KEY.calleeMethod, calls: 10n, attempts: 10n }] };

// Browsers log refused connections.
test.use({ expected: /net::ERR_/ });

const banner = (page: Page) => page.getByRole("status").getByText("Disconnected.");
const ageOf = async (page: Page) => Number(/Data is (\d+) s old/.exec(await page.getByRole("status").first().innerText())?.[1]);

async function save(page: Page): Promise<void> {
  await page.getByRole("button", { name: "Review 1 change…" }).click();
  await say(page.getByRole("dialog"));
  await page.getByRole("dialog").getByRole("button", { name: "Save" }).click();
  await expect(page.getByTestId("convergence")).toContainText(/Stored at revision \d+/);
}

test("a restart under five tabs is shown, and drafts survive it", async ({ page, context, served, api, connect }) => {
  await api.rules.putRule({ rule: { key: KEY, policy: POLICY } });
  await api.rules.putRule({ rule: { key: OTHER, policy: POLICY } });
  connect("gateway").report(REPORT);
  const [second, route, kill, overview] = [await context.newPage(), await context.newPage(), await context.newPage(), await context.newPage()];
  await live(overview, "/");
  await expect(overview.getByRole("row").filter({ hasText: KEY.calleeMethod })).toBeVisible();
  await live(route, at("/route"));
  await expect(route.getByText(/Detailed updates/)).toBeVisible();
  await live(kill, "/kill?callee=orders");
  await say(kill, "a drill");
  await live(second, at("/rule", OTHER));
  await setting(second, "retry.max_attempts").fill("5");
  await live(page, at("/rule"));
  const typed = setting(page, "retry.max_attempts");
  await typed.fill("4");
  const press = page.getByRole("button", { name: "Review 1 change…" });
  await expect(press).toBeEnabled();
  const tabs = [page, second, route, kill, overview];
  for (const tab of tabs) await tab.evaluate(() => { document.body.dataset["loaded"] = "once"; });

  await served.kill();
  for (const tab of tabs) {
    await expect(banner(tab)).toBeVisible(WITHIN);
    await expect(tab.getByTestId("liveness")).toContainText("disconnected");
  }
  const before = await ageOf(page);
  await expect.poll(() => ageOf(page)).toBeGreaterThan(before);
  await expect(press).toBeDisabled();
  await expect(press).toHaveAccessibleDescription(/Disconnected: no changes are possible until the server responds/);
  await expect(kill.getByRole("button", { name: "Stop retries…" })).toBeDisabled();
  await expect(kill.getByRole("button", { name: "Stop retries…" })).toHaveAccessibleDescription(/Disconnected/);
  await expect(typed).toHaveValue("4");
  // Typing continues.
  await setting(page, "timeout").fill("2s");
  await setting(page, "timeout").fill("");

  await served.start();
  for (const tab of tabs) {
    await expect(tab.getByTestId("liveness")).toContainText("live");
    await expect(banner(tab)).toHaveCount(0);
    await expect(tab.locator("body")).toHaveAttribute("data-loaded", "once");
  }
  await expect(typed).toHaveValue("4");
  await expect(setting(second, "retry.max_attempts")).toHaveValue("5");
  await expect(kill.getByLabel(/^Reason/)).toHaveValue("a drill");
  await Promise.all([save(page), save(second)]);
  expect((await api.rules.getRule({ key: KEY })).policy?.retry?.maxAttempts).toBe(4);
  expect((await api.rules.getRule({ key: OTHER })).policy?.retry?.maxAttempts).toBe(5);
  // The route reappears with its reporter.
  connect("gateway").report(REPORT);
  await expect(route.getByText(/Detailed updates/)).toBeVisible();
  await expect(kill.getByRole("button", { name: "Stop retries…" })).toBeEnabled();
});

test("after a restart only the server's current data is shown", async ({ page, served, connect }) => {
  const caller = connect("gateway");
  caller.report(REPORT);
  await live(page, "/");
  const row = page.getByRole("row").filter({ hasText: KEY.calleeMethod });
  await expect(row).toBeVisible();
  await expect(page.getByTestId("clients")).toHaveText("1");
  await served.kill();
  // The old data stays visible and is marked stale while no server answers.
  await expect(banner(page)).toBeVisible(WITHIN);
  await expect(row).toBeVisible();
  await served.start();
  await expect(page.getByTestId("liveness")).toContainText("live");
  await expect(page.getByText("No service has reported a call yet.")).toBeVisible();
  await expect(page.getByTestId("clients")).toHaveText("0");
});

test("a change during a disconnection becomes a conflict", async ({ page, served, api }) => {
  await api.rules.putRule({ rule: { key: KEY, policy: POLICY } });
  await live(page, at("/rule"));
  await setting(page, "retry.max_attempts").fill("5");
  await served.kill();
  await expect(banner(page)).toBeVisible(WITHIN);
  await served.start();
  await api.rules.putRule({ rule: { key: KEY, policy: { ...POLICY, retry: { maxAttempts: 3 } } }, options: { author: "another operator" } });
  await expect(page.getByTestId("conflict")).toContainText(/another operator changed this rule meanwhile/);
  await expect(setting(page, "retry.max_attempts")).toHaveValue("5");
});

test("a stalled connection is detected, and writes time out", async ({ browser, served, api }) => {
  await api.rules.putRule({ rule: { key: KEY, policy: POLICY } });
  const wire = await Wire.to(served.port);
  const context = await browser.newContext({ baseURL: wire.url });
  const complain = heed(context, wire.url, /net::ERR_/);
  const page = await context.newPage();
  try {
    await live(page, at("/rule"));
    await setting(page, "retry.max_attempts").fill("4");
    await page.getByRole("button", { name: "Review 1 change…" }).click();
    const dialog = page.getByRole("dialog");
    await expect(dialog.getByRole("button", { name: "Save" })).toBeEnabled();
    wire.hold();
    const writes = page.waitForRequest((request) => request.url().endsWith("/PutRule"));
    await say(dialog);
    await dialog.getByRole("button", { name: "Save" }).click();
    await writes;
    await expect(dialog.getByRole("button", { name: "Saving…" })).toBeDisabled();
    await expect(page.getByTestId("liveness")).toContainText("stale");
    await expect(banner(page)).toBeVisible(WITHIN);
    await expect(dialog.getByRole("alert")).toContainText("The server did not answer in time.", WITHIN);
    await expect(dialog.getByRole("button", { name: "Save" })).toBeDisabled();
    await expect(dialog).toContainText("Disconnected: no changes are possible until the server responds.");
    wire.release();
    await expect(page.getByTestId("liveness")).toContainText("live");
    await expect(banner(page)).toHaveCount(0);
    await expect(setting(page, "retry.max_attempts")).toHaveValue("4");
  } finally {
    await context.close();
    await wire.end();
  }
  complain();
});
