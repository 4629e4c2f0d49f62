// Queues and jobs on the real server: jobs that wait, are held, dead and replayed; settings that are created,
// changed, in conflict, rolled back and deleted.
import type { Page } from "@playwright/test";
import { Code, Mode } from "../../gen/damper/v1/policy_pb";
import { expectSound, tabTo } from "../accessibility";
import { apiOf, expect, live, say, setting, test } from "./setup";
import { done, failed } from "./worker";

const QUEUE = "stock-later";
const policy = { mode: Mode.ENFORCE, retry: { maxAttempts: 20 } };
const identity = { service: "orders", cluster: "default", instance: "orders-1" };
type Api = ReturnType<typeof apiOf>;

async function submit(api: Api, keys: readonly string[], more: { sendsBefore?: number; calleeService?: string } = {}): Promise<string[]> {
  const jobs = keys.map((key) => ({ queue: QUEUE, key, calleeService: "stock", calleeMethod: "shop.v1.Stock/Take", body: new Uint8Array(300), ...more }));
  const { jobs: submitted } = await api.jobs.submit({ identity, jobs });
  expect(submitted.flatMap(({ rejected }) => rejected?.message ?? [])).toEqual([]);
  return submitted.map(({ jobId }) => jobId);
}

const jobsOf = (page: Page) => page.getByRole("table", { name: "Jobs", exact: true });

async function confirm(page: Page, button: string | RegExp, reason: string): Promise<void> {
  const dialog = page.getByRole("dialog");
  await say(dialog, reason);
  await dialog.getByRole("button", { name: button }).click();
  await expect(dialog).toHaveCount(0);
}

test("waiting jobs die, are found by route and reason, and are replayed", async ({ page, api, work }) => {
  test.slow();
  await api.queues.putQueue({ queue: { name: QUEUE, policy, workers: ["orders"], owner: "team-orders" } });
  await submit(api, ["order-1", "order-2", "order-3"]);
  await submit(api, ["invoice-1"], { calleeService: "ledger" });
  await live(page, "/queues");
  const row = page.getByRole("row", { name: QUEUE });
  await expect(row).toContainText(/enforce.*4.*no worker.*team-orders/s);
  await row.getByRole("link", { name: QUEUE }).click();
  await expect(page.getByTestId("verdict")).toContainText("The jobs of 2 of 2 routes are held: no worker.");
  await expect(jobsOf(page).getByRole("row", { name: "order-1" })).toContainText("waiting: no worker");

  const worker = work("orders", QUEUE, ({ route }) => failed(`no ${route?.calleeService ?? ""} here`, route?.calleeService === "ledger" ? Code.PERMISSION_DENIED : Code.NOT_FOUND));
  await expect(page.getByTestId("facts")).toContainText(/Dead\s*4/);
  await expect(page.getByTestId("verdict")).toContainText("4 jobs are dead");
  await page.getByTestId("facts").getByRole("link", { name: "4" }).click();
  const groups = page.getByRole("table", { name: "Dead jobs by route and reason" });
  await expect(groups.getByRole("row")).toHaveCount(3);
  const stock = groups.getByRole("row", { name: /orders → stock/ });
  await expect(stock).toContainText(/not retryable.*NOT_FOUND no stock here.*3/s);
  await expectSound(page);

  await jobsOf(page).getByRole("link", { name: "order-2" }).click();
  await expect(page.getByTestId("state")).toHaveText("dead");
  await expect(page.getByRole("region", { name: "Life" })).toContainText(/Submitted.*Delivery 1 failed with NOT_FOUND: no stock here.*orders\/orders-1, took 12 ms.*Dead: not retryable/s);
  await expectSound(page);
  await page.goBack();

  // Only the group is replayed, and counted first.
  worker.handler = () => done;
  await stock.getByRole("button", { name: /^Replay…/ }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByRole("heading")).toHaveText("Replay 3 jobs?");
  await expect(dialog).toContainText("Dead jobs of orders → stock shop.v1.Stock/Take, last failure NOT_FOUND.");
  await dialog.getByLabel(/per second/).fill("100");
  await expect(dialog).toContainText("The last one is due in 0 s.");
  await confirm(page, "Replay 3 jobs", "stock has them again");
  await expect(page.getByTestId("changed")).toContainText("3 jobs were set to wait again.");
  await expect(groups.getByRole("row")).toHaveCount(2);
  await page.getByRole("group", { name: "State of the jobs" }).getByRole("button", { name: "Ended" }).click();
  await expect(jobsOf(page).getByRole("row", { name: /order-\d/ })).toHaveCount(3);

  // One job, by keyboard.
  await page.getByRole("group", { name: "State of the jobs" }).getByRole("button", { name: "Dead" }).click();
  await jobsOf(page).getByRole("link", { name: "invoice-1" }).click();
  await tabTo(page, page.getByRole("button", { name: "Delete…" }));
  await page.keyboard.press("Enter");
  await expect(dialog.getByRole("heading")).toHaveText("Delete 1 job?");
  for (const [label, text] of [[/^Reason/, "it is a test"], [/^Your name/, "kim"]] as const) {
    await tabTo(page, dialog.getByLabel(label));
    await page.keyboard.press("ControlOrMeta+A");
    await page.keyboard.type(text);
  }
  await page.keyboard.press("Enter");
  await expect(page.getByText("The job is no longer stored.")).toBeVisible();
});

test("kill switches and pauses hold jobs until they end", async ({ page, api, work }) => {
  await api.queues.putQueue({ queue: { name: QUEUE, policy, workers: ["orders"] } });
  await api.kills.kill({ key: { callerService: "*", callerCluster: "*", calleeService: "stock", calleeMethod: "*" }, options: { author: "kim", reason: "INC-7" } });
  const handled: string[] = [];
  work("orders", QUEUE, ({ jobId }) => { handled.push(jobId); return done; });
  const [job = ""] = await submit(api, ["order-1"], { sendsBefore: 1 });
  await live(page, `/queue?name=${QUEUE}`);
  await expect(page.getByTestId("verdict")).toContainText("The jobs are held: kill switch.");
  await expect(page.getByRole("row", { name: /orders → stock/ }).first()).toContainText(/kill switch.*until/s);
  await live(page, `/job?id=${job}`);
  await expect(page.getByText("A kill switch holds it.")).toBeVisible();
  await expect(page.getByRole("region", { name: "Life" })).toContainText(/after 1 attempt of the call itself.*Delivery 1 is due: held: kill switch/s);
  expect(handled).toEqual([]);

  await page.getByRole("link", { name: `Queue ${QUEUE}` }).click();
  await page.getByRole("button", { name: "Pause…" }).click();
  await confirm(page, "Pause", "INC-8");
  await expect(page.getByTestId("verdict")).toContainText(/Paused: no job is delivered.*INC-8.*playwright/s);
  await api.kills.unkill({ key: { callerService: "*", callerCluster: "*", calleeService: "stock", calleeMethod: "*" }, options: { author: "kim", reason: "over" } });
  await live(page, "/queues");
  await expect(page.getByRole("row", { name: QUEUE })).toContainText(/paused\s*INC-8/);
  expect(handled).toEqual([]);
  await page.getByRole("link", { name: QUEUE }).click();
  await page.getByRole("button", { name: "Resume…" }).click();
  await confirm(page, "Resume", "over");
  await expect.poll(() => handled).toEqual([job]);
  await expect(page.getByTestId("verdict")).toContainText("No job waits.");
  // Marks of the changes, as text.
  await expect(page.getByRole("region", { name: /^Changed in the last/ })).toContainText(/queue changed.*kill ended.*queue changed.*kill set.*queue created/s);
});

test("a queue is created, changed, in conflict, rolled back and deleted", async ({ page, api }) => {
  test.slow();
  await live(page, "/queues");
  await page.getByRole("link", { name: "New queue" }).click();
  await page.getByLabel("Name", { exact: true }).fill("Not a name");
  await setting(page, "max_in_flight").fill("99999");
  await setting(page, "lease").fill("1s");
  // All faults at once, each at its field.
  await expect(page.getByText("3 invalid settings.")).toBeVisible();
  for (const path of ["max_in_flight", "lease"]) await expect(setting(page, path)).toHaveAttribute("aria-invalid", "true");
  await expect(page.getByLabel("Name", { exact: true })).toHaveAttribute("aria-invalid", "true");
  await expect(page.getByRole("button", { name: "Review and save…" })).toBeDisabled();
  await expectSound(page);
  await page.getByLabel("Name", { exact: true }).fill(QUEUE);
  await setting(page, "max_in_flight").fill("50");
  await setting(page, "lease").fill("1min");
  await setting(page, "workers").fill("orders, stock-*");
  await page.getByRole("button", { name: "Review and save…" }).click();
  await confirm(page, "Save", "it is needed");
  await expect(page.getByTestId("convergence")).toContainText(/Stored at revision 1/);
  await expect(page).toHaveURL(`/queue-settings?name=${QUEUE}`);
  expect(await api.queues.getQueue({ name: QUEUE })).toMatchObject({ maxInFlight: 50, workers: ["orders", "stock-*"], policy: { mode: Mode.ENFORCE } });

  // Another operator pauses it meanwhile: both changes are kept.
  await setting(page, "policy.retry.max_attempts").fill("7");
  const stored = await api.queues.getQueue({ name: QUEUE });
  await api.queues.putQueue({ queue: { ...stored, paused: "INC-9" }, options: { author: "another operator" } });
  await expect(page.getByTestId("conflict")).toContainText(/another operator changed this queue meanwhile.*paused.*INC-9/s);
  await expect(page.getByRole("button", { name: "Review and save…" })).toBeDisabled();
  await page.getByRole("button", { name: "Keep my changes" }).click();
  await page.getByRole("button", { name: "Review and save…" }).click();
  await expect(page.getByRole("dialog").getByTestId("difference")).toHaveText(/policy\.retry\.max_attempts.*not set.*7/s);
  await expect(page.getByRole("dialog").getByTestId("difference")).not.toContainText("paused");
  await confirm(page, "Save", "fewer attempts");
  expect(await api.queues.getQueue({ name: QUEUE })).toMatchObject({ paused: "INC-9", maxInFlight: 50, policy: { retry: { maxAttempts: 7 } } });

  // Its history rolls it back.
  await page.getByRole("link", { name: "its history" }).click();
  await page.getByRole("link", { name: "3", exact: true }).click();
  await expect(page.getByTestId("difference")).toContainText(/max_attempts.*7/s);
  await page.getByRole("button", { name: /Undo this change/ }).click();
  await expect(page.getByRole("dialog").getByRole("heading").first()).toHaveText(`Roll back Queue ${QUEUE} to revision 2?`);
  await confirm(page, "Roll back", "it was too few");
  await expect(page.getByTestId("convergence")).toContainText(/Stored at revision 4/);
  expect((await api.queues.getQueue({ name: QUEUE })).policy?.retry?.maxAttempts).toBeUndefined();

  // It is not deleted while it has jobs, with the server's reason.
  const [job = ""] = await submit(api, ["order-1"]);
  await expect.poll(async () => (await api.queues.getQueueStats({ queue: QUEUE })).queues[0]?.waiting).toBe(1n);
  await live(page, `/queue-settings?name=${QUEUE}`);
  await page.getByRole("button", { name: "Delete the queue…" }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByRole("alert")).toContainText(`queue ${QUEUE} cannot be deleted: it has jobs that have not ended (1)`);
  await expect(dialog.getByRole("button", { name: "Delete" })).toBeDisabled();
  await page.keyboard.press("Escape");
  await live(page, `/job?id=${job}`);
  await page.getByRole("button", { name: "Cancel…" }).click();
  await confirm(page, "Cancel 1 job", "it is a test");
  await expect(page.getByTestId("state")).toHaveText("cancelled");
  await live(page, `/queue-settings?name=${QUEUE}`);
  await page.getByRole("button", { name: "Delete the queue…" }).click();
  await confirm(page, "Delete", "not needed");
  await expect(page.getByText("The queue was deleted.")).toBeVisible();
  await expect(api.queues.getQueue({ name: QUEUE })).rejects.toThrow(/there is no queue/);
});

test.describe("a server without a job store", () => {
  test.use({ serve: "--queues off" });

  test("shows queues, and why there are no jobs", async ({ page, api }) => {
    await api.queues.putQueue({ queue: { name: QUEUE, policy } });
    await live(page, "/queues");
    await expect(page.getByRole("status").filter({ hasText: "No figures of jobs." })).toBeVisible();
    await page.getByRole("link", { name: QUEUE }).click();
    await expect(page.getByRole("status").filter({ hasText: "No jobs can be shown." })).toBeVisible();
    await expect(page.getByRole("heading", { name: "Settings" })).toBeVisible();
    await expectSound(page);
  });
});
