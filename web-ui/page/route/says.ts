// A route in one sentence: what an operator wants to know first. Pure.
import type { RouteStats } from "$wire/fleet_pb";
import { FAILING_SHARE } from "../failing";
import { keyText } from "../feed/state";
import { extra, isStorm } from "../overview/verdict";
import type { Level } from "../overview/verdict";
import { rate, share, times } from "../words";
import { atProcesses } from "./gates";

export interface Said {
  readonly level: Level;
  readonly answer: string;
  readonly why: string;
}

export function says(stats: RouteStats | undefined): Said {
  if (stats === undefined) return { level: "silent", answer: "Not seen", why: "No connected process has reported a call of this route." };
  const held = holding(stats);
  const failed = stats.errorShare > 0 ? `${share(stats.errorShare)} of ${rate(stats.callsPerS)} calls/s fail` : "no call fails";
  if (stats.callsPerS === 0) return { level: "silent", answer: "No calls", why: sentence("Nothing was called in the last seconds", held) };
  if (isStorm(stats)) {
    const stormed = `${rate(extra(stats))} extra attempts/s; ${failed}`;
    return stats.awaitedKill === undefined
      ? { level: "storm", answer: `Storms: each call is sent ${times(stats.amplification)}`, why: sentence(stormed, held) }
      : {
          level: "stopped",
          answer: "Stopped, waiting for the proof",
          why: `By kill ${keyText(stats.awaitedKill)}. The figures began before it: ${times(stats.amplification)}, ${stormed}.`,
        };
  }
  // Who looks at one route minds single calls too.
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
