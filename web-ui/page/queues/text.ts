// States, reasons and settings of queues as text.
import type { Timestamp } from "@bufbuild/protobuf/wkt";
import { JobState } from "$wire/jobs_pb";
import type { RouteKey } from "$wire/policy_pb";
import type { Job, QueueStats } from "$wire/queues_pb";
import { NONE, trim } from "../format/numbers";
import { age } from "../format/time";

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

// What follows from a reason, and what ends it; empty = it ends on its own.
const REMEDIES: Readonly<Record<string, string>> = {
  paused: "Resume the queue to deliver its jobs.",
  off: "Set the mode to enforce to deliver its jobs.",
  no_policy: "Create a queue of this name, or restore it from its history.",
  killed: "They wait and use no attempts until the kill switch ends.",
  callee_failing: "They wait and use no attempts; only probes do. They go on when a probe succeeds.",
  stop_when: "They wait until the stop condition has ended.",
  no_worker: "No connected worker takes these jobs: start one, or check the workers that the queue allows.",
  no_credits: "Add workers, or raise their concurrency.",
  released: "The workers returned them untried: see the log of a worker.",
  rate: "Raise the rate of the queue.",
  max_in_flight: "Raise the limit of jobs in flight.",
};

export function remedyOf(why: string): string {
  return REMEDIES[why] ?? "";
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
  if (ms === undefined) return NONE;
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

export function routeText(route: RouteKey | undefined): string {
  if (route === undefined) return NONE;
  const cluster = route.callerCluster === "default" ? "" : ` (${route.callerCluster})`;
  return `${route.callerService}${cluster} → ${route.calleeService} ${route.calleeMethod}`;
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

export function settingsHref(name: string): string {
  return `/queue-settings?${new URLSearchParams({ name }).toString()}`;
}
