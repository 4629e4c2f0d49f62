// The answer to "is anything storming?", from the routes' figures alone. Pure, so that it can be tested.
import type { RouteStats } from "$wire/fleet_pb";
import { totals } from "../feed/state";
import type { Totals } from "../feed/state";
import { isHigh } from "../words";

// Below this a multiplication is a matter of single calls, not of load.
const EXTRA_PER_S = 0.5;
// A route that fails so much, with so many calls, deserves the operator's eye even where nothing is repeated.
const FAILING_SHARE = 0.1;
const FAILING_CALLS_PER_S = 0.2;

export type Level = "storm" | "failing" | "calm" | "silent";

export interface Verdict extends Totals {
  readonly level: Level;
  // The worst first.
  readonly storming: readonly RouteStats[];
  readonly failing: readonly RouteStats[];
}

export function extra(route: RouteStats): number {
  return Math.max(route.attemptsPerS - route.callsPerS, 0);
}

export function verdict(routes: readonly RouteStats[]): Verdict {
  const storming = routes
    .filter((route) => isHigh(route.amplification) && extra(route) >= EXTRA_PER_S)
    .sort((a, b) => extra(b) - extra(a));
  const failing = routes
    .filter((route) => route.errorShare >= FAILING_SHARE && route.callsPerS >= FAILING_CALLS_PER_S)
    .sort((a, b) => b.errorShare * b.callsPerS - a.errorShare * a.callsPerS);
  const sum = totals(routes);
  const level = storming.length > 0 ? "storm" : failing.length > 0 ? "failing" : sum.calls > 0 ? "calm" : "silent";
  return { ...sum, level, storming, failing };
}
