// A route in one sentence: what an operator wants to know first. Pure.
import type { RouteStats } from "$wire/fleet_pb";
import { extra } from "../overview/verdict";
import { isHigh, rate, share, times } from "../words";
import { atProcesses } from "./gates";

export type Level = "storm" | "failing" | "calm" | "silent";

export interface Said {
  readonly level: Level;
  readonly answer: string;
  readonly why: string;
}

// As for the fleet: below these it is a matter of single calls.
const EXTRA_PER_S = 0.5;
const FAILING_SHARE = 0.1;

export function says(stats: RouteStats | undefined): Said {
  if (stats === undefined) return { level: "silent", answer: "Not seen", why: "No connected process has reported a call of this route." };
  const held = holding(stats);
  const failed = stats.errorShare > 0 ? `${share(stats.errorShare)} of ${rate(stats.callsPerS)} calls/s fail` : "no call fails";
  if (stats.callsPerS === 0) return { level: "silent", answer: "No calls", why: sentence("Nothing was called in the last seconds", held) };
  if (isHigh(stats.amplification) && extra(stats) >= EXTRA_PER_S) {
    return {
      level: "storm",
      answer: `Storms: each call is sent ${times(stats.amplification)}`,
      why: sentence(`${rate(extra(stats))} extra attempts/s; ${failed}`, held),
    };
  }
  if (stats.errorShare >= FAILING_SHARE) {
    return { level: "failing", answer: `Fails: ${share(stats.errorShare)} of calls`, why: sentence("Repeats do not multiply it", held) };
  }
  return { level: "calm", answer: "Calm", why: sentence(`It sends about what it is asked for; ${failed}`, held) };
}

// What stops repeats at present, the strongest first; none = nothing does.
export function holding(stats: RouteStats): string[] {
  return [
    stats.killed > 0 ? "a kill switch stops repeats" : "",
    stats.circuitOpen > 0 ? atProcesses(stats.circuitOpen, stats, "the circuit is open", "") : "",
    stats.breakerRefuses > 0 ? atProcesses(stats.breakerRefuses, stats, "the retry breaker refuses", "") : "",
    stats.budgetRefuses > 0 ? atProcesses(stats.budgetRefuses, stats, "the budget is used up", "") : "",
  ].filter((words) => words !== "");
}

function sentence(begin: string, held: readonly string[]): string {
  return `${[begin, ...held].join("; ")}.`;
}
