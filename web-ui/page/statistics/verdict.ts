// The answer to "is anything storming?", from the routes' figures alone. Pure, so that it can be tested.
//
// A storm that a kill switch stops is none any more, although the figures go on telling it for as long as they are of a
// time before the kill: the server says of which routes that is so.
import type { GetChainResponse, RouteStats } from "$wire/fleet_pb";
import { failedPerS, isFailing } from "./failing";
import type { Flow } from "./failing";
import { totals } from "../feed/state";
import { keyText } from "../format/key";
import { isHigh } from "../format/numbers";
import type { Totals } from "../feed/state";

// Below this a multiplication is a matter of single calls, not of load.
const EXTRA_PER_S = 0.5;
// Below failing, but shown if nothing is worse.
const NOTICED_SHARE = 0.01;
const NOTICED_PER_S = 0.2;

export type Level = "storm" | "stopped" | "failing" | "calm" | "silent";

export const LEVEL_SIGN: Record<Level, string> = { storm: "▲", stopped: "■", failing: "◆", calm: "●", silent: "○" };

export interface Verdict extends Totals {
  readonly level: Level;
  // The worst first.
  readonly storming: readonly RouteStats[];
  // Those that stormed until a kill came, of which there is no proof yet.
  readonly stopped: readonly RouteStats[];
  readonly failing: readonly RouteStats[];
  // Of which most calls fail, of those that do not count as failing.
  readonly noticed: RouteStats | undefined;
}

// What the answer names: where this is another text, figures told elsewhere are old.
export function signature({ level, storming, stopped, failing }: Verdict): string {
  return [level, ...[storming, stopped, failing].map((routes) => routes.map(({ key }) => keyText(key)).sort().join(","))].join("|");
}

// The rules allow more sends at the end of a chain than the server's limit; an older server does not name it.
export function isAboveLimit({ limit, worstPossible }: GetChainResponse): boolean {
  return limit > 0 && worstPossible !== undefined && worstPossible.sends > BigInt(limit);
}

export function extra(route: RouteStats): number {
  return Math.max(route.attemptsPerS - route.callsPerS, 0);
}

// By its figures, whatever stops it.
export function isStorm(route: RouteStats): boolean {
  return isHigh(route.amplification) && extra(route) >= EXTRA_PER_S;
}

// A route as one of the flows by which failures are followed.
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
