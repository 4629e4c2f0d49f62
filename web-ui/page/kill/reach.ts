// What a kill would stop, by the figures at hand: which routes, and how much of their load; and who obeys one that is in
// force. Pure.
import { Fate } from "$wire/distribution_pb";
import type { Client, RouteStats } from "$wire/fleet_pb";
import type { KillSwitch } from "$wire/kills_pb";
import type { Names } from "../format/key";
import { keyText } from "../format/key";
import { extra } from "../statistics/verdict";

export interface Reach {
  readonly routes: readonly RouteStats[];
  // What is repeated on them now.
  readonly repeatsPerS: number;
  readonly callsPerS: number;
  readonly sendsPerS: number;
  // Calls that succeed only because they are repeated: they fail once nothing is.
  readonly savedPerS: number;
}

const SAVED = new Set([Fate.OK_AFTER_RETRY, Fate.OK_BY_HEDGE]);

// Of one pattern or of several; a route that several match counts once.
export function reachOf(names: Names | readonly Names[], routes: Iterable<RouteStats>): Reach {
  const all = Array.isArray(names) ? (names as readonly Names[]) : [names as Names];
  const matching = [...routes].filter((route) => all.some((each) => matchesRoute(each, route)));
  return {
    routes: matching,
    repeatsPerS: matching.reduce((sum, route) => sum + extra(route), 0),
    callsPerS: matching.reduce((sum, route) => sum + route.callsPerS, 0),
    sendsPerS: matching.reduce((sum, route) => sum + route.attemptsPerS, 0),
    savedPerS: matching.flatMap(({ fates }) => fates).filter(({ fate, would }) => SAVED.has(fate) && !would).reduce((sum, { perS }) => sum + perS, 0),
  };
}

export interface Proof {
  // Of some of its routes the figures are still of before the kill; they show its effect; they show that it has none.
  readonly level: "awaited" | "given" | "failed";
  // Of what the kill stops, now.
  readonly perS: number;
}

// Below this it is the end of a rounding, not of a call.
const NOTHING_PER_S = 0.05;

// Whether a kill has stopped what it is for, by the figures of what it reaches.
export function proofOf({ routes, repeatsPerS, sendsPerS }: Reach, calls: boolean): Proof {
  const perS = calls ? sendsPerS : repeatsPerS;
  if (routes.some(({ clients, killed, awaitedKill }) => (clients > 0 && killed === 0) || awaitedKill !== undefined)) return { level: "awaited", perS };
  return { level: perS < NOTHING_PER_S ? "given" : "failed", perS };
}

// Where everything that is repeated to a service can be stopped; with why, where somebody has found a reason.
export function killHref(callee: string, why = ""): string {
  return `/kill?${new URLSearchParams({ callee, ...(why === "" ? {} : { why }) }).toString()}`;
}

// Where a storm of several hops is stopped at once. No name holds a space.
export function killAllHref(callees: readonly string[], why: string): string {
  return `/kill?${new URLSearchParams({ callees: callees.join(" "), why }).toString()}`;
}

// As many keys as one request may have.
export const MOST_KILLS = 32;

export function matchesRoute(names: Names, { key }: Pick<RouteStats, "key">): boolean {
  if (key === undefined) return false;
  const method = names.calleeMethod.endsWith("/*")
    ? key.calleeMethod.startsWith(names.calleeMethod.slice(0, -1))
    : same(names.calleeMethod, key.calleeMethod);
  return method && same(names.callerService, key.callerService) && same(names.callerCluster, key.callerCluster)
    && same(names.calleeService, key.calleeService);
}

// Kills that were set in one change, where there are several: those that are not stored are of no change yet.
export function setTogether(kills: readonly KillSwitch[]): readonly (readonly KillSwitch[])[] {
  const stored = kills.filter(({ unstored }) => !unstored);
  return [...new Set(stored.map(({ revision }) => revision))].map((revision) => stored.filter((kill) => kill.revision === revision))
    .filter((group) => group.length > 1);
}

export interface Obedience {
  readonly obey: number;
  // Clients that it concerns.
  readonly of: number;
}

// As damper-core's `feature.rs` names it: without it a client knows nothing of kills.
const FEATURE = "kill_switch";

// By what clients have confirmed: an answer to the kill's revision is the proof that it is obeyed. A kill that is not
// stored has no revision of its own, so nothing is known of it.
export function obedience({ key, revision, unstored }: KillSwitch, clients: readonly Client[]): Obedience | undefined {
  if (unstored) return undefined;
  if (key === undefined) return { obey: 0, of: 0 };
  const concerned = clients.filter(({ identity }) =>
    identity !== undefined && same(key.callerService, identity.service) && same(key.callerCluster, identity.cluster));
  const obeying = concerned.filter(({ acknowledgedRevision, features, refused }) =>
    acknowledgedRevision >= revision && features.includes(FEATURE) && !refused.some((one) => one.kill && keyText(one.key) === keyText(key)));
  return { obey: obeying.length, of: concerned.length };
}

function same(wanted: string, is: string): boolean {
  return wanted === "*" || wanted === is;
}
