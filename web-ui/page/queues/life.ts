// The life of a job as a line: submitted, each known delivery, and how it goes on. Pure.
//
// The server keeps the last 8 failures of a job. Deliveries that were released, lost or cut off from that
// list have no entry, so the line names their numbers.
import type { Duration, Timestamp } from "@bufbuild/protobuf/wkt";
import { JobState } from "$wire/jobs_pb";
import type { Job, JobFailure } from "$wire/queues_pb";
import { codeName } from "../routes/route/failed_calls";
import { age, toMs } from "../format/time";
import { heldText, msOf, reasonOf, remedyOf, stateName } from "./text";

export type Mark = "begin" | "failed" | "unknown" | "next" | "dead" | "end";

export const SIGNS: Record<Mark, string> = { begin: "●", failed: "✕", unknown: "…", next: "○", dead: "▲", end: "✓" };

export interface Step {
  readonly name: string;
  readonly mark: Mark;
  readonly at: Timestamp | undefined;
  readonly text: string;
  // Words of the worker, or the reason.
  readonly detail: string;
  readonly worker: string;
  readonly took: Duration | undefined;
}

const KEPT = 8;

export function life(job: Job): Step[] {
  const steps: Step[] = [];
  const before = job.sendsBefore > 0 ? `after ${job.sendsBefore} ${job.sendsBefore === 1 ? "attempt" : "attempts"} of the call itself` : "";
  steps.push({ ...EMPTY, name: "submitted", mark: "begin", at: job.submittedAt, text: "Submitted", detail: before });
  let known = 0;
  job.failures.forEach((failure, at) => {
    steps.push(...missing(known + 1, failure.delivery - 1, at === 0 && job.failures.length >= KEPT));
    steps.push(failed(failure, job.failures[at - 1]));
    known = failure.delivery;
  });
  const isOver = [JobState.DONE, JobState.DEAD, JobState.CANCELLED, JobState.EXPIRED].includes(job.state);
  // The last delivery is the present one, or the one that finished the job.
  const open = job.state === JobState.LEASED || job.state === JobState.DONE ? 1 : 0;
  steps.push(...missing(known + 1, job.deliveries - open, false));
  steps.push(isOver ? ended(job) : going(job));
  return steps;
}

const EMPTY = { detail: "", worker: "", took: undefined };

function failed({ at, code, took, worker, detail, delivery }: JobFailure, earlier: JobFailure | undefined): Step {
  const waited = earlier === undefined ? undefined : (msOf(at) ?? 0) - (took ? toMs(took) : 0) - (msOf(earlier.at) ?? 0);
  const after = waited === undefined || waited < 1000 ? "" : `, ${age(waited)} after the one before`;
  return { name: `failure ${delivery}`, mark: "failed", at, text: `Delivery ${delivery} failed with ${codeName(code)}${after}`, detail, worker, took };
}

function missing(first: number, last: number, isCut: boolean): Step[] {
  if (first > last) return [];
  const which = first === last ? `Delivery ${first}` : `Deliveries ${first} to ${last}`;
  const why = isCut ? `only the last ${KEPT} failures are kept` : "released or lost: no failure is recorded";
  return [{ ...EMPTY, name: `missing ${first}`, mark: "unknown", at: undefined, text: which, detail: why }];
}

function ended(job: Job): Step {
  const reason = reasonOf(job);
  const text = stateName(job.state);
  const why = job.state === JobState.DONE ? `by delivery ${job.deliveries}` : reason === text ? "" : reason;
  return { ...EMPTY, name: "end", mark: job.state === JobState.DEAD ? "dead" : "end", at: job.at, text: text.charAt(0).toUpperCase() + text.slice(1), detail: why };
}

function going(job: Job): Step {
  if (job.state === JobState.LEASED) return { ...EMPTY, name: "now", mark: "next", at: job.at, text: `Delivery ${job.deliveries} is in flight`, detail: "" };
  if (job.state === JobState.BEHIND) return { ...EMPTY, name: "next", mark: "next", at: undefined, text: "Waits behind another job", detail: `of the order key ${job.orderKey}` };
  const text = `Delivery ${job.deliveries + 1} is due`;
  return { ...EMPTY, name: "next", mark: "next", at: job.at, text, detail: job.held === "" ? "" : `held: ${heldText(job.held)}. ${remedyOf(job.held)}` };
}
