// The verdict on all routes (storm, stopped, failing, calm, silent) from their statistics. Pure.
//
// A storm that a kill switch stopped still shows in rates that include traffic from before the kill. The
// server marks these routes by `awaitedKill`.
import type { GetChainResponse, RouteStats } from "$wire/fleet_pb";
import { failedPerS, isFailing } from "./failing";
import type { Flow } from "./failing";
import { totals } from "../feed/state";
import { keyText } from "../format/key";
import { isHigh } from "../format/numbers";
import type { Totals } from "../feed/state";

// Below this rate an amplification comes from single calls.
const EXTRA_PER_S = 0.5;
// Shown if no route is failing.
const NOTICED_SHARE = 0.01;
const NOTICED_PER_S = 0.2;

export type Level = "storm" | "stopped" | "failing" | "calm" | "silent";

export const LEVEL_SIGN: Record<Level, string> = { storm: "▲", stopped: "■", failing: "◆", calm: "●", silent: "○" };

export interface Verdict extends Totals {
  readonly level: Level;
  // The worst first.
  readonly storming: readonly RouteStats[];
  // Storms under a kill whose effect is not confirmed yet.
  readonly stopped: readonly RouteStats[];
  readonly failing: readonly RouteStats[];
  // The route with the most failed calls below the failing threshold.
  readonly noticed: RouteStats | undefined;
}

// Identifies the content of the verdict; another one makes older findings stale.
export function signature({ level, storming, stopped, failing }: Verdict): string {
  return [level, ...[storming, stopped, failing].map((routes) => routes.map(({ key }) => keyText(key)).sort().join(","))].join("|");
}

// The rules allow more attempts at the end of a chain than the server's limit. Older servers send no limit.
export function isAboveLimit({ limit, worstPossible }: GetChainResponse): boolean {
  return limit > 0 && worstPossible !== undefined && worstPossible.sends > BigInt(limit);
}

export function extra(route: RouteStats): number {
  return Math.max(route.attemptsPerS - route.callsPerS, 0);
}

// By its statistics, even under a kill.
export function isStorm(route: RouteStats): boolean {
  return isHigh(route.amplification) && extra(route) >= EXTRA_PER_S;
}

// A route as a flow.
export type RouteFlow = Flow & { readonly route: RouteStats };

export function flowOf(route: RouteStats): RouteFlow {
  const { key, callsPerS, errorShare } = route;
  return { from: key?.callerService ?? "", to: key?.calleeService ?? "", callsPerS, errorShare, route };
}

export function verdict(routes: readonly RouteStats[]): Verdict {
  const storms = routes.filter(isStorm).sort((a, b) => extra(b) - extra(a));
  const storming = storms.filter(({ awaitedKill }) => awaitedKill === undefined);
  const stopped = storms.filter(({ awaitedKill }) => awaitedKill !== undefined);
  const failed = routes.filter(isNoticed).sort((a, b) => failedPerS(b) - failedPerS(a));
  const failing = failed.filter(isFailing);
  const noticed = failed.find((route) => !isFailing(route));
  const sum = totals(routes);
  return { ...sum, level: level(storming, stopped, failing, sum), storming, stopped, failing, noticed };
}

function isNoticed(route: RouteStats): boolean {
  return isFailing(route) || (route.errorShare >= NOTICED_SHARE && failedPerS(route) >= NOTICED_PER_S);
}

function level(storming: readonly RouteStats[], stopped: readonly RouteStats[], failing: readonly RouteStats[], { calls }: Totals): Level {
  if (storming.length > 0) return "storm";
  if (stopped.length > 0) return "stopped";
  if (failing.length > 0) return "failing";
  return calls > 0 ? "calm" : "silent";
}
