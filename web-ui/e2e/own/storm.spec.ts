// A storm over several hops: stopped and ended in one change. And risky rules while all is calm.
import { Fate } from "../../gen/damper/v1/distribution_pb";
import { Mode } from "../../gen/damper/v1/policy_pb";
import { expectSound } from "../accessibility";
import { expect, live, say, test } from "./setup";

// Calls and attempts per second.
const hop = (callee: string, calls: bigint, attempts: bigint) => (second: bigint) => ({
  routes: [{
    calleeService: callee, calleeMethod: `${callee}.v1.Api/Get`, calls: calls * second, attempts: attempts * second, retries: (attempts - calls) * second,
    fates: [{ fate: Fate.OK_AFTER_RETRY, count: calls * second }],
  }],
});

test("retries on all routes of a storm stop in one change, and end in one", async ({ page, api, connect }) => {
  test.slow();
  connect("gateway", { serves: true }).flow(hop("orders", 100n, 300n));
  connect("orders", { serves: true }).flow(hop("stock", 300n, 900n));
  await live(page, "/");
  const verdict = page.getByTestId("verdict");
  await expect(verdict).toContainText(/Retry storm on 2 routes/);
  await expect(page.getByTestId("end-to-end")).toHaveText(/×9/);
  await verdict.getByRole("link", { name: "Stop retries on all 2 routes…" }).click();
  await expect(page.getByTestId("kill-all").getByRole("checkbox")).toHaveCount(2);
  await expect(page.getByTestId("reach")).toContainText(/2 known routes,\s+2 connected clients/);
  await expectSound(page);
  await say(page);
  await page.getByRole("button", { name: "Stop retries…" }).click();
  await page.getByRole("button", { name: "Stop retries now" }).click();
  await expect(page.locator("tr[data-kill]")).toHaveCount(2);
  const { kills, revision } = await api.kills.listKills({});
  expect(kills.map((kill) => kill.revision)).toEqual([revision, revision]);
  await page.getByRole("button", { name: "End all 2…" }).click();
  const dialog = page.getByRole("dialog");
  await say(dialog);
  await dialog.getByRole("button", { name: "End all" }).click();
  await expect(page.getByText("No kill switch is in force.")).toBeVisible();
  expect((await api.kills.listKills({})).revision).toBe(revision + 1n);
});

test("all calls of all services are rejected only after typing", async ({ page, api }) => {
  await live(page, "/kill");
  await page.getByLabel("All services: every caller and every callee").check();
  await page.getByLabel(/Reject all calls/).check();
  await say(page);
  await page.getByRole("button", { name: "Stop calls…" }).click();
  const dialog = page.getByRole("dialog");
  const press = dialog.getByRole("button", { name: "Stop calls now" });
  await expect(press).toBeDisabled();
  await dialog.getByLabel(/^Type all services/).fill("services");
  await expect(press).toBeDisabled();
  await dialog.getByLabel(/^Type all services/).fill("all services");
  await expectSound(page);
  await press.click();
  await expect(page.locator("tr[data-kill]")).toHaveCount(1);
  expect((await api.kills.listKills({})).kills.map(({ calls }) => calls)).toEqual([true]);
});

test("rules that allow more than the limit are marked while all is calm", async ({ page, api, connect }) => {
  const chain = ["gateway", "orders", "inventory", "stock"];
  const key = (caller: string, callee: string) => ({ callerService: caller, callerCluster: "*", calleeService: callee, calleeMethod: "*" });
  for (const [at, caller] of chain.slice(0, -1).entries()) {
    connect(caller, { serves: true }).flow(hop(chain[at + 1] ?? "", 100n, 100n));
    const policy = { mode: Mode.ENFORCE, retry: { maxAttempts: 3 }, chain: { ignoreRetryFlag: true } };
    await api.rules.putRule({ rule: { key: key(caller, chain[at + 1] ?? ""), policy }, options: { force: true, reason: "a drill" } });
  }
  await live(page, "/");
  await expect(page.getByTestId("verdict")).toContainText("No retry storm");
  await expect(page.getByTestId("above-limit")).toContainText(/Rules allow 27 attempts per request along\s+gateway → orders → inventory → stock; the limit is 16\./);
  await expect(page.getByTestId("allowed")).toHaveText("≤ 27");
  await expectSound(page);
  await page.getByRole("link", { name: "Rules", exact: true }).click();
  await expect(page.getByTestId("sends").first()).toContainText(/▲ limit 16\s+27/);
  await expectSound(page);
});
