// What a kill would stop, by the figures at hand: which routes, and how much of their load. Pure.
import type { RouteStats } from "$wire/fleet_pb";
import type { Names } from "../address.svelte";
import { extra } from "../overview/verdict";

export interface Reach {
  readonly routes: readonly RouteStats[];
  // What is repeated on them now.
  readonly repeatsPerS: number;
  readonly callsPerS: number;
}

export function reachOf(names: Names, routes: Iterable<RouteStats>): Reach {
  const matching = [...routes].filter((route) => matchesRoute(names, route));
  return {
    routes: matching,
    repeatsPerS: matching.reduce((sum, route) => sum + extra(route), 0),
    callsPerS: matching.reduce((sum, route) => sum + route.callsPerS, 0),
  };
}

export function matchesRoute(names: Names, { key }: Pick<RouteStats, "key">): boolean {
  if (key === undefined) return false;
  const same = (wanted: string, is: string) => wanted === "*" || wanted === is;
  const method = names.calleeMethod.endsWith("/*")
    ? key.calleeMethod.startsWith(names.calleeMethod.slice(0, -1))
    : same(names.calleeMethod, key.calleeMethod);
  return method && same(names.callerService, key.callerService) && same(names.callerCluster, key.callerCluster)
    && same(names.calleeService, key.calleeService);
}
