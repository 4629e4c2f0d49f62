// States, reasons and settings of queues as text.
import type { Timestamp } from "@bufbuild/protobuf/wkt";
import { JobState } from "$wire/jobs_pb";
import { OnStop } from "$wire/queues_pb";
import type { Job, Queue, QueueStats } from "$wire/queues_pb";
import { attempts, backoff, modeName } from "../format/policy";
import { some, trim, whole } from "../format/numbers";
import { age, span } from "../format/time";

const STATES: Record<JobState, string> = {
  [JobState.UNSPECIFIED]: "unknown",
  [JobState.WAITING]: "waiting",
  [JobState.BEHIND]: "behind another job",
  [JobState.LEASED]: "in flight",
  [JobState.DONE]: "done",
  [JobState.DEAD]: "dead",
  [JobState.CANCELLED]: "cancelled",
  [JobState.EXPIRED]: "expired",
};

export function stateName(state: JobState): string {
  return STATES[state] ?? `state ${state}`;
}

// Why due jobs are not delivered.
const HELD: Readonly<Record<string, string>> = {
  paused: "paused",
  off: "mode off",
  observe: "mode observe",
  no_policy: "the queue has no policy",
  killed: "kill switch",
  callee_failing: "the callee fails: one probe per second",
  stop_when: "stop condition",
  no_worker: "no worker",
  no_credits: "all workers are busy",
  released: "released by its workers",
  pace: "pace after an outage",
  rate: "rate limit",
  max_in_flight: "limit of jobs in flight",
};

export function heldText(why: string): string {
  return HELD[why] ?? why.replaceAll("_", " ");
}

// Reasons that need an operator or a worker; the others end on their own.
export function isProblem(why: string): boolean {
  return ["paused", "off", "no_policy", "killed", "callee_failing", "stop_when", "no_worker"].includes(why);
}

export function msOf(time: Timestamp | undefined): number | undefined {
  return time === undefined ? undefined : Number(time.seconds) * 1000 + time.nanos / 1e6;
}

// "2 min 3 s ago", "in 5 s"; a dash without a time.
export function relative(time: Timestamp | undefined, nowMs: number): string {
  const ms = msOf(time);
  if (ms === undefined) return "–";
  return ms <= nowMs ? `${age(nowMs - ms)} ago` : `in ${age(ms - nowMs)}`;
}

// Time since the job that has been due the longest became due.
export function lateMs(stats: QueueStats, nowMs: number): number {
  const due = msOf(stats.oldestDueAt);
  return due === undefined ? 0 : Math.max(nowMs - due, 0);
}

export function bytes(count: bigint): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = Number(count);
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${trim(value)} ${units[unit] ?? ""}`;
}

// The settings of a queue, a row each. "default" = set by the server.
export function settings(queue: Queue): readonly (readonly [string, string])[] {
  const { policy } = queue;
  const retry = policy?.retry;
  const atMost = (count: number | undefined) => (count === undefined ? undefined : `at most ${whole(count)}`);
  const rows: (readonly [string, string | undefined])[] = [
    ["Mode", modeName(policy?.mode ?? 0)],
    ["Attempts", retry === undefined ? undefined : attempts(policy)],
    ["Backoff", retry?.backoff === undefined ? undefined : backoff(policy)],
    ["Limit of an attempt", retry?.perAttemptTimeout && span(retry.perAttemptTimeout)],
    ["Workers", queue.workers.join(", ") || "the submitting service"],
    ["Submitters", queue.submitters.join(", ") || undefined],
    ["Methods", queue.methods.join(", ") || "all"],
    ["In flight", atMost(queue.maxInFlight)],
    ["Rate", queue.rate === undefined ? "no limit" : `at most ${trim(queue.rate)} per second`],
    ["Held after", queue.holdAfter === undefined ? undefined : some(queue.holdAfter, "failure in a row", "failures in a row")],
    ["Stop condition", policy?.stopWhen === undefined ? "none" : queue.onStop === OnStop.DEAD ? "jobs are given up" : "jobs wait"],
    ["Expires after", queue.expiresAfter && span(queue.expiresAfter)],
    ["Ended jobs are kept", queue.keepDone && span(queue.keepDone)],
    ["Dead jobs are kept", queue.keepDead && span(queue.keepDead)],
    ["Jobs", atMost(queue.maxJobs)],
    ["Size", queue.maxBytes === undefined ? undefined : `at most ${bytes(queue.maxBytes)}`],
    ["Owner", queue.owner || "none"],
  ];
  return rows.map(([name, value]) => [name, value ?? "default"]);
}

// Ends whose name does not show who caused them.
const ENDED: Readonly<Record<string, string>> = {
  refused: "given up by its worker",
  lost: "its workers disappeared",
};

// Why a job ended, or why it waits.
export function reasonOf(job: Job): string {
  if (job.ended !== "") return ENDED[job.ended] ?? job.ended.replaceAll("_", " ");
  return job.held === "" ? "" : heldText(job.held);
}

export function queueHref(name: string, more: Record<string, string> = {}): string {
  return `/queue?${new URLSearchParams({ name, ...more }).toString()}`;
}

export function jobHref(id: string): string {
  return `/job?${new URLSearchParams({ id }).toString()}`;
}
