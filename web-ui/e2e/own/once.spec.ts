// Every write is sent once, even after several presses.
import { fromBinary } from "@bufbuild/protobuf";
import type { DescMessage } from "@bufbuild/protobuf";
import type { Page, Request } from "@playwright/test";
import type { WriteOptions } from "../../gen/damper/v1/admin_pb";
import { DeleteGuardRequestSchema, PutGuardRequestSchema } from "../../gen/damper/v1/guards_pb";
import { RollbackAllRequestSchema, RollbackRequestSchema } from "../../gen/damper/v1/history_pb";
import { KillRequestSchema, UnkillRequestSchema } from "../../gen/damper/v1/kills_pb";
import { ChangeJobsRequestSchema, DeleteQueueRequestSchema, PutQueueRequestSchema } from "../../gen/damper/v1/queues_pb";
import { DeleteRuleRequestSchema, PutRuleRequestSchema } from "../../gen/damper/v1/rules_pb";
import { KEY, at, expect, live, say, setting, test } from "./setup";

const WRITES: Record<string, DescMessage> = {
  PutRule: PutRuleRequestSchema, DeleteRule: DeleteRuleRequestSchema, PutGuard: PutGuardRequestSchema, DeleteGuard: DeleteGuardRequestSchema,
  Kill: KillRequestSchema, Unkill: UnkillRequestSchema, Rollback: RollbackRequestSchema, RollbackAll: RollbackAllRequestSchema,
  PutQueue: PutQueueRequestSchema, DeleteQueue: DeleteQueueRequestSchema, ChangeJobs: ChangeJobsRequestSchema,
};

// The name of the write in a request; undefined = none.
function written(request: Request): string | undefined {
  const name = request.url().split("/").at(-1) ?? "";
  const schema = WRITES[name];
  const body = request.postDataBuffer();
  if (schema === undefined || body === null) return undefined;
  // After the five bytes of the frame.
  const { options } = fromBinary(schema, body.subarray(5)) as { options?: WriteOptions };
  return options?.validateOnly ? undefined : name;
}

// Presses twice, and once by keyboard, before the server answers the first.
async function press(page: Page, name: string | RegExp, sent: string[], expected: string): Promise<void> {
  const dialog = page.getByRole("dialog");
  const button = dialog.getByRole("button", { name });
  await expect(button).toBeEnabled();
  if (await dialog.getByLabel(/^Reason/).count() > 0) await say(dialog, "a drill");
  let release = () => {};
  const released = new Promise<void>((resolve) => { release = resolve; });
  await page.route(`**/${expected}`, async (route) => {
    await released;
    await route.continue();
  });
  const before = sent.length;
  await button.dblclick();
  await page.keyboard.press("Enter");
  await expect.poll(() => sent.length).toBe(before + 1);
  release();
  await expect(dialog).toHaveCount(0);
  await page.unroute(`**/${expected}`);
  expect(sent.slice(before)).toEqual([expected]);
}

test("rules, rollbacks, guards, queues, jobs and kills: two presses, one request", async ({ page, api }) => {
  test.slow();
  const sent: string[] = [];
  page.on("request", (request) => {
    const name = written(request);
    if (name !== undefined) sent.push(name);
  });
  await live(page, at("/rule"));
  await setting(page, "retry.max_attempts").fill("4");
  await page.getByRole("button", { name: /^Review/ }).click();
  await press(page, "Save", sent, "PutRule");
  await setting(page, "retry.max_attempts").fill("5");
  await page.getByRole("button", { name: /^Review/ }).click();
  await press(page, "Save", sent, "PutRule");

  await live(page, "/history?rev=2");
  await page.getByRole("button", { name: /Undo this change/ }).click();
  await press(page, "Roll back", sent, "Rollback");
  expect((await api.rules.getRule({ key: KEY })).policy?.retry?.maxAttempts).toBe(4);
  await live(page, "/history?from=2&to=3");
  await page.getByRole("button", { name: "Roll back everything to 2…" }).click();
  await press(page, "Roll back", sent, "RollbackAll");
  expect((await api.rules.getRule({ key: KEY })).policy?.retry?.maxAttempts).toBe(5);

  await live(page, at("/rule"));
  await page.getByRole("button", { name: "Delete the rule…" }).click();
  await press(page, "Delete", sent, "DeleteRule");

  await live(page, at("/guard"));
  await page.getByLabel("Max attempts").fill("2");
  await page.getByRole("button", { name: "Review and save…" }).click();
  await press(page, "Save", sent, "PutGuard");
  await page.getByRole("button", { name: "Delete the guard…" }).click();
  await press(page, "Delete", sent, "DeleteGuard");

  await live(page, "/queue-settings?new=1");
  await page.getByLabel("Name", { exact: true }).fill("later");
  await page.getByRole("button", { name: "Review and save…" }).click();
  await press(page, "Save", sent, "PutQueue");
  const identity = { service: "orders", cluster: "default", instance: "orders-1" };
  const { jobs: [job] } = await api.jobs.submit({ identity, jobs: [{ queue: "later", key: "order-1", calleeService: "stock", calleeMethod: "shop.v1.Stock/Take" }] });
  await live(page, `/job?id=${job?.jobId ?? ""}`);
  await page.getByRole("button", { name: "Cancel…" }).click();
  await press(page, "Cancel 1 job", sent, "ChangeJobs");
  await live(page, "/queue-settings?name=later");
  await page.getByRole("button", { name: "Delete the queue…" }).click();
  await press(page, "Delete", sent, "DeleteQueue");

  await live(page, "/kill?callee=orders");
  await say(page, "a drill");
  await page.getByRole("button", { name: "Stop retries…" }).click();
  await press(page, "Stop retries now", sent, "Kill");
  await page.getByRole("button", { name: "End it…" }).click();
  await press(page, "End it", sent, "Unkill");
});
