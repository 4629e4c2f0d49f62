// Failed calls, as text and as bars.
import type { Timestamp } from "@bufbuild/protobuf/wkt";
import type { FailedAttempt, FailedCall } from "$wire/distribution_pb";
import type { RouteFailure } from "$wire/fleet_pb";
import { Code } from "$wire/policy_pb";
import { age, span, toMs } from "../../format/time";
import { NONE } from "../../format/numbers";

export interface Row {
  // Constant while the call is shown.
  readonly id: string;
  readonly client: string;
  readonly call: FailedCall;
}

export function rowsOf(failures: readonly RouteFailure[]): Row[] {
  const met = new Map<string, number>();
  return failures.flatMap(({ client, call }) => {
    if (call === undefined) return [];
    const { seconds = 0n, nanos = 0 } = call.endedAt ?? {};
    const alike = [client?.instance, seconds, nanos, call.traceId, call.callId, call.latency?.nanos, call.fate].join("_").replaceAll(/\s/g, "_");
    const before = met.get(alike) ?? 0;
    met.set(alike, before + 1);
    return [{ id: `${alike}_${before}`, client: client?.instance ?? "", call }];
  });
}

export function codeName(code: Code): string {
  return Code[code] ?? `code ${code}`;
}

function msOf({ seconds, nanos }: Timestamp): number {
  return Number(seconds) * 1000 + nanos / 1e6;
}

// The two clocks differ, so a call may seem to end in the future.
export function ago(at: Timestamp | undefined, now: Timestamp | undefined): string {
  if (at === undefined || now === undefined) return NONE;
  return `${age(Math.max(msOf(now) - msOf(at), 0))} ago`;
}

// To the millisecond, with day and zone.
export function exactly(at: Timestamp | undefined): string {
  if (at === undefined) return NONE;
  const date = new Date(msOf(at));
  if (Number.isNaN(date.getTime())) return `${at.seconds} s since 1970`;
  const time = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, timeZoneName: "short" });
  return `${date.toLocaleDateString("en-GB", { dateStyle: "medium" })}, ${time}`;
}

export interface Bar {
  readonly attempt: FailedAttempt;
  readonly kind: "send" | "hedge";
  // Shares of the call's duration, in percent.
  readonly from: number;
  readonly length: number;
  // No answer before the call's end.
  readonly open: boolean;
  readonly words: string;
}

// The attempts as bars on one time axis: that of the call, or of its attempts if these end later.
export function barsOf(call: FailedCall): Bar[] {
  const at = (attempt: FailedAttempt) => (attempt.sentAfter ? toMs(attempt.sentAfter) : 0);
  const ends = call.attempts.map((attempt) => at(attempt) + (attempt.took ? toMs(attempt.took) : 0));
  const whole = Math.max(call.latency ? toMs(call.latency) : 0, ...ends);
  const part = (ms: number) => (whole > 0 ? (ms / whole) * 100 : 0);
  return call.attempts.map((attempt) => {
    const from = part(at(attempt));
    const open = attempt.took === undefined;
    return {
      attempt,
      kind: attempt.hedge ? "hedge" : "send",
      from,
      length: attempt.took === undefined ? 100 - from : part(toMs(attempt.took)),
      open,
      words: open ? "no answer before the call ended" : `${codeName(attempt.code)} after ${span(attempt.took)}`,
    };
  });
}
