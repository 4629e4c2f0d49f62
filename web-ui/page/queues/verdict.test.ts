// The answer on a queue, and its dead jobs by route and reason.
import { create } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { JobState } from "$wire/jobs_pb";
import { Code } from "$wire/policy_pb";
import { JobSchema, QueueSchema, QueueStatsSchema } from "$wire/queues_pb";
import { deadGroups } from "./dead";
import { life } from "./life";
import { verdictOf } from "./verdict";

const queue = create(QueueSchema, { name: "later" });
const NOW = 1_000_000;
const seconds = (ms: number) => ({ seconds: BigInt(Math.floor(ms / 1000)), nanos: 0 });
const lane = (held: string, calleeService = "stock") => ({ route: { callerService: "orders", callerCluster: "default", calleeService, calleeMethod: "shop.v1.A/B" }, waiting: 1n, held });

function answer(stats: MessageInitShape<typeof QueueStatsSchema>, of = queue) {
  const { level, answer, why } = verdictOf(of, create(QueueStatsSchema, { queue: "later", waiting: 1n, ...stats }), NOW);
  return `${level}: ${answer} ${why}`;
}

test("the worst reason comes first", () => {
  const paused = create(QueueSchema, { name: "later", paused: "INC-7", updatedBy: "ann" });
  expect(answer({ held: "paused", lanes: [lane("killed")] }, paused)).toMatch(/^failing: Paused: no job is delivered. “INC-7” \(ann/);
  expect(answer({ held: "off" })).toBe("failing: No job is delivered: mode off. Set the mode to enforce to deliver its jobs.");
  expect(answer({ lanes: [lane("killed"), lane("")], oldestDueAt: seconds(NOW - 600_000) })).toMatch(/^failing: The jobs of 1 of 2 routes are held: kill switch\./);
  expect(answer({ lanes: [lane("killed"), lane("no_worker"), lane("killed")] })).toMatch(/3 of 3 routes are held\. kill switch \(2\), no worker \(1\)\./);
  expect(answer({ lanes: [lane("no_credits")], oldestDueAt: seconds(NOW - 90_000) }))
    .toBe("failing: Jobs are late: the oldest has been due for 1 min 30 s. Reasons: all workers are busy. Add workers, or raise their concurrency.");
  expect(answer({ lanes: [lane("no_credits")], oldestDueAt: seconds(NOW - 5_000), dead: 2n })).toBe("calm: Due jobs are delivered. 2 jobs are dead: given up, kept, and can be replayed.");
  expect(answer({ waiting: 0n })).toBe("silent: No job waits. ");
});

const failure = (delivery: number, code: Code) => ({ at: seconds(NOW - 1_000 * (20 - delivery)), code, delivery, worker: "orders/a", detail: "refused", took: seconds(0) });
const dead = (jobId: string, code?: Code, ended = "attempts_exhausted", calleeService = "stock") => create(JobSchema, {
  jobId, route: lane("", calleeService).route, state: JobState.DEAD, ended, failures: code === undefined ? [] : [failure(1, code)], at: seconds(NOW),
});

test("dead jobs without a code are named one by one, the others by route and code", () => {
  const groups = deadGroups("later", [dead("1", Code.UNAVAILABLE), dead("2", Code.UNAVAILABLE, "expired"), dead("3"), dead("4", Code.UNAVAILABLE, "expired", "ledger")]);
  expect(groups.map(({ jobs, reasons }) => [jobs, reasons])).toEqual([[2, ["attempts exhausted", "expired"]], [1, ["expired"]], [1, ["attempts exhausted"]]]);
  expect(groups[0]?.filter).toMatchObject({ queue: "later", states: [JobState.DEAD], code: Code.UNAVAILABLE, route: { calleeService: "stock" } });
  expect(groups[2]?.filter).toEqual({ queue: "later", states: [JobState.DEAD], jobIds: ["3"] });
});

test("deliveries without a record are named in the life of a job", () => {
  const job = create(JobSchema, {
    jobId: "1", state: JobState.WAITING, deliveries: 7, failures: [failure(2, Code.UNAVAILABLE), failure(5, Code.ABORTED)], held: "killed", at: seconds(NOW), submittedAt: seconds(NOW - 60_000), sendsBefore: 3,
  });
  expect(life(job).map(({ text, detail }) => `${text}: ${detail}`)).toEqual([
    "Submitted: after 3 attempts of the call itself",
    "Delivery 1: released or lost: no failure is recorded",
    "Delivery 2 failed with UNAVAILABLE: refused",
    "Deliveries 3 to 4: released or lost: no failure is recorded",
    "Delivery 5 failed with ABORTED, 3 s after the one before: refused",
    "Deliveries 6 to 7: released or lost: no failure is recorded",
    "Delivery 8 is due: held: kill switch. They wait and use no attempts until the kill switch ends.",
  ]);
  const full = create(JobSchema, { state: JobState.DONE, deliveries: 10, failures: [2, 3, 4, 5, 6, 7, 8, 9].map((n) => failure(n, Code.ABORTED)) });
  expect(life(full)[1]).toMatchObject({ text: "Delivery 1", detail: "only the last 8 failures are kept" });
  expect(life(full).at(-1)).toMatchObject({ text: "Done", detail: "by delivery 10" });
});
