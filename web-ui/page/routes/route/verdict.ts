// The state of a route in one sentence. Pure.
import type { RouteStats } from "$wire/fleet_pb";
import { Mode } from "$wire/policy_pb";
import { FAILING_SHARE } from "../../statistics/failing";
import { keyText } from "../../format/key";
import { rate, share, times } from "../../format/numbers";
import { extra, isStorm } from "../../statistics/verdict";
import type { Level } from "../../statistics/verdict";
import { atProcesses } from "./gates";

export interface Verdict {
  readonly level: Level;
  readonly answer: string;
  readonly why: string;
}

export function verdictOf(stats: RouteStats | undefined): Verdict {
  if (stats === undefined) return { level: "silent", answer: "No data", why: "No connected process has reported a call of this route." };
  const held = holding(stats);
  const failed = stats.errorShare > 0 ? `${share(stats.errorShare)} of ${rate(stats.callsPerS)} calls/s fail` : "no call fails";
  if (stats.callsPerS === 0) return { level: "silent", answer: "No calls", why: sentence("No calls in the last seconds", held) };
  if (isStorm(stats)) {
    const stormed = `${rate(extra(stats))} retries/s; ${failed}`;
    return stats.awaitedKill === undefined
      ? { level: "storm", answer: `Retry storm: ${times(stats.amplification)} attempts per call`, why: sentence(stormed, held) }
      : {
          level: "stopped",
          answer: "Retries stopped, verifying",
          why: `By kill ${keyText(stats.awaitedKill)}. Rates still include traffic from before it: ${times(stats.amplification)}, ${stormed}.`,
        };
  }
  // The page of one route also reports low rates.
  if (stats.errorShare >= FAILING_SHARE) {
    return { level: "failing", answer: `Failing: ${share(stats.errorShare)} of calls`, why: sentence("Retries do not multiply the failures", held) };
  }
  return { level: "calm", answer: "Calm", why: sentence(`About one attempt per call; ${failed}`, held) };
}

// The gates that block retries now, the strongest first.
export function holding(stats: RouteStats): string[] {
  // Observe mode blocks nothing.
  const would = stats.mode === Mode.OBSERVE;
  return [
    stats.killed > 0 ? "a kill switch stops retries" : "",
    stats.circuitOpen > 0 ? atProcesses(stats.circuitOpen, stats, would ? "the circuit would be open" : "the circuit is open", "") : "",
    stats.breakerRefuses > 0 ? atProcesses(stats.breakerRefuses, stats, would ? "the retry breaker would block retries" : "the retry breaker blocks retries", "") : "",
    stats.budgetRefuses > 0 ? atProcesses(stats.budgetRefuses, stats, would ? "the budget would be used up" : "the budget is used up", "") : "",
  ].filter((words) => words !== "");
}

function sentence(begin: string, held: readonly string[]): string {
  return `${[begin, ...held].join("; ")}.`;
}
