// The reach of a kill by current statistics: its routes and their load, and the clients that have it. Pure.
import { Fate } from "$wire/distribution_pb";
import type { Client, RouteStats } from "$wire/fleet_pb";
import type { KillSwitch } from "$wire/kills_pb";
import type { Names } from "../format/key";
import { keyText } from "../format/key";
import { extra } from "../statistics/verdict";

export interface Reach {
  readonly routes: readonly RouteStats[];
  // Retries and hedges per second.
  readonly retriesPerS: number;
  readonly callsPerS: number;
  readonly attemptsPerS: number;
  // Calls that succeed only by a retry or hedge; a kill makes them fail.
  readonly savedPerS: number;
}

const SAVED = new Set([Fate.OK_AFTER_RETRY, Fate.OK_BY_HEDGE]);

// The reach of one or several patterns. Each route counts once.
export function reachOf(names: Names | readonly Names[], routes: Iterable<RouteStats>): Reach {
  const all = Array.isArray(names) ? (names as readonly Names[]) : [names as Names];
  const matching = [...routes].filter((route) => all.some((each) => matchesRoute(each, route)));
  return {
    routes: matching,
    retriesPerS: matching.reduce((sum, route) => sum + extra(route), 0),
    callsPerS: matching.reduce((sum, route) => sum + route.callsPerS, 0),
    attemptsPerS: matching.reduce((sum, route) => sum + route.attemptsPerS, 0),
    savedPerS: matching.flatMap(({ fates }) => fates).filter(({ fate, would }) => SAVED.has(fate) && !would).reduce((sum, { perS }) => sum + perS, 0),
  };
}

export interface Proof {
  // awaited = some statistics are from before the kill; given = the load has stopped; failed = it has not.
  readonly level: "awaited" | "given" | "failed";
  // The load that the kill stops, now.
  readonly perS: number;
}

// Lower rates come from rounding.
const NOTHING_PER_S = 0.05;

// Whether a kill has stopped its load.
export function proofOf({ routes, retriesPerS, attemptsPerS }: Reach, calls: boolean): Proof {
  const perS = calls ? attemptsPerS : retriesPerS;
  if (routes.some(({ clients, killed, awaitedKill }) => (clients > 0 && killed === 0) || awaitedKill !== undefined)) return { level: "awaited", perS };
  return { level: perS < NOTHING_PER_S ? "given" : "failed", perS };
}

// The link to the kill switch of a callee, with a suggested reason.
export function killHref(callee: string, why = ""): string {
  return `/kill?${new URLSearchParams({ callee, ...(why === "" ? {} : { why }) }).toString()}`;
}

// The link to kill switches of several callees in one change. Names contain no spaces.
export function killAllHref(callees: readonly string[], why: string): string {
  return `/kill?${new URLSearchParams({ callees: callees.join(" "), why }).toString()}`;
}

// The maximum number of keys per request.
export const MOST_KILLS = 32;

export function matchesRoute(names: Names, { key }: Pick<RouteStats, "key">): boolean {
  if (key === undefined) return false;
  const method = names.calleeMethod.endsWith("/*")
    ? key.calleeMethod.startsWith(names.calleeMethod.slice(0, -1))
    : same(names.calleeMethod, key.calleeMethod);
  return method && same(names.callerService, key.callerService) && same(names.callerCluster, key.callerCluster)
    && same(names.calleeService, key.calleeService);
}

// Groups of kills that were set in one change. Kills that are not stored have no change yet.
export function setTogether(kills: readonly KillSwitch[]): readonly (readonly KillSwitch[])[] {
  const stored = kills.filter(({ unstored }) => !unstored);
  return [...new Set(stored.map(({ revision }) => revision))].map((revision) => stored.filter((kill) => kill.revision === revision))
    .filter((group) => group.length > 1);
}

export interface Delivery {
  readonly delivered: number;
  // Clients in its scope.
  readonly of: number;
}

// As in feature.rs of damper-core. Clients without it ignore kills.
const FEATURE = "kill_switch";

// Clients that acknowledged the kill's revision. Undefined for a kill that is not stored, because it has no
// revision.
export function deliveryOf({ key, revision, unstored }: KillSwitch, clients: readonly Client[]): Delivery | undefined {
  if (unstored) return undefined;
  if (key === undefined) return { delivered: 0, of: 0 };
  const concerned = clients.filter(({ identity }) =>
    identity !== undefined && same(key.callerService, identity.service) && same(key.callerCluster, identity.cluster));
  const delivered = concerned.filter(({ acknowledgedRevision, features, refused }) =>
    acknowledgedRevision >= revision && features.includes(FEATURE) && !refused.some((one) => one.kill && keyText(one.key) === keyText(key)));
  return { delivered: delivered.length, of: concerned.length };
}

function same(wanted: string, is: string): boolean {
  return wanted === "*" || wanted === is;
}
