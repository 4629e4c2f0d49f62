// Routes, rules and guards of the company. Pure; always the same.
import type { Edge } from "../gen/damper/v1/fleet_pb";
import { manyServices } from "../page/testing/many_services";

const SERVICES = 64;
const RULES = 10_000;
const CLUSTERS = ["default", "batch", "canary", "online"] as const;
const VERBS = ["Get", "List", "Create", "Update", "Cancel", "Search", "Reserve", "Release", "Quote", "Validate", "Export", "Confirm", "Count", "Refresh"] as const;
const THINGS = ["", "Item", "Batch", "Draft"] as const;

export const edges = manyServices(SERVICES, 7).edges;
// These have a rule for all their calls, wider than any guard, which limits it.
const WIDEST = [...new Set(edges.map(({ callerService }) => callerService))].slice(0, 3);

interface Policy {
  readonly mode: "enforce" | "observe" | "off";
  readonly retry: { readonly max_attempts: number; readonly codes: object; readonly backoff: object };
  readonly retry_breaker: { readonly enabled: false } | { readonly earn: number };
}

// Many retries: the retry breaker of its rule is off. On the edge with the most failures it is on.
export function storms({ amplification, errorShare }: Edge): boolean {
  return amplification > 1.5 && errorShare < 0.2;
}

// Settings of the most specific rule for a method of an edge, by their numbers; none = no rule.
export function inForce(edge: Edge, place: number, at: number): Policy | undefined {
  if (edge.routesWithoutRule === 0) return policy(place + at, at === 0 && storms(edge));
  const wide = WIDEST.indexOf(edge.callerService);
  return wide < 0 ? undefined : policy(wide, false, 5);
}

// Between 12 and 44, some edges being broader than others.
export function methods(calleeService: string, place: number): string[] {
  const service = `shop.v1.${calleeService.split("-").map((word) => word.charAt(0).toUpperCase() + word.slice(1)).join("")}`;
  return THINGS.flatMap((thing) => VERBS.map((verb) => `${service}/${verb}${thing}`)).slice(0, 12 + ((place * 11) % 33));
}

// Rules from wide to exact up to `count`, then the guards.
export function manifests(): object[] {
  const ruled = edges.map((edge, place) => ({ edge, place })).filter(({ edge }) => edge.routesWithoutRule === 0);
  const wide = ruled.map(({ edge, place }) => rule(edge.callerService, "*", edge.calleeService, "*", policy(place, storms(edge))));
  const exact = CLUSTERS.flatMap((cluster) => ruled.flatMap(({ edge, place }) => methods(edge.calleeService, place).map((method, at) =>
    rule(edge.callerService, cluster, edge.calleeService, method, policy(place + at, at === 0 && storms(edge))))));
  const callees = [...new Set(edges.map(({ calleeService }) => calleeService))];
  const services = CLUSTERS.flatMap((cluster) => edges.flatMap(({ callerService }, place) => callees.map((callee) =>
    rule(callerService, cluster, callee, `shop.v1.Legacy${String(place)}/*`, policy(place)))));
  const widest = WIDEST.map((caller, at) => rule(caller, "*", "*", "*", policy(at, false, 5)));
  const rules = [...widest, ...wide, ...exact, ...services].slice(0, RULES);
  return [...rules, ...callees.slice(0, 24).map(guard)];
}

function rule(caller: string, cluster: string, callee: string, method: string, policy: Policy): object {
  return {
    kind: "Rule",
    key: { caller_service: caller, caller_cluster: cluster, callee_service: callee, callee_method: method },
    policy,
    owner: `team-${caller.replace(/-\d+$/, "")}`,
  };
}

function policy(place: number, lets = false, maxAttempts = lets ? 3 : 2 + (place % 2)): Policy {
  const base = [10, 25, 50, 100][place % 4] ?? 25;
  return {
    mode: place % 9 === 4 ? "observe" : place % 31 === 7 ? "off" : "enforce",
    retry: {
      max_attempts: maxAttempts,
      codes: { allow: ["UNAVAILABLE"] },
      backoff: { exponential: { base: `${String(base)}ms`, max: `${String(base * 10)}ms` } },
    },
    retry_breaker: lets ? { enabled: false } : { earn: place % 3 === 0 ? 0.05 : 0.02 },
  };
}

function guard(callee: string, place: number): object {
  // The callees in a storm have no retry breaker and no retry limit yet.
  const stormed = edges.some((edge) => edge.calleeService === callee && storms(edge));
  const breaker = stormed ? {} : { max_retry_breaker_ratio: 0.2 };
  const limit = place % 3 === 0 && !stormed ? { repeat_limit: { mode: "enforce", ratio: 0.1 } } : {};
  const hedge = place % 4 === 1 ? { hedge: "forbid" } : {};
  return {
    kind: "Guard",
    key: { caller_service: "*", caller_cluster: "*", callee_service: callee, callee_method: "*" },
    ceiling: { max_attempts: 3 + (place % 2), ...breaker, ...hedge, ...limit },
    owner: `team-${callee.replace(/-\d+$/, "")}`,
  };
}
