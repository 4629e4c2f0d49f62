// What the page knows: everything said on the stream so far, folded into one value.
//
// A pure reducer over WatchResponse, so that a tab, the shared worker and the tests agree. It keeps no
// clock: what is new is found by comparing with the value before.
import { create } from "@bufbuild/protobuf";
import { WatchResponseSchema } from "$wire/fleet_pb";
import type { RouteStats, RuleView, WatchResponse } from "$wire/fleet_pb";
import type { KillSwitch } from "$wire/kills_pb";
import type { Pattern, RouteKey } from "$wire/policy_pb";

export interface Fleet {
  readonly epoch: string;
  readonly revision: bigint;
  readonly clients: number;
  readonly asOf: WatchResponse["asOf"];
  readonly staleSince: WatchResponse["staleSince"];
  readonly window: WatchResponse["window"];
  readonly routes: ReadonlyMap<string, RouteStats>;
  readonly rules: ReadonlyMap<string, RuleView>;
  // All that are in force.
  readonly kills: readonly KillSwitch[];
  // Whose clients' figures are missing.
  readonly missingReplicas: readonly string[];
  // Rules whose setting or delivery the last message changed; none after a reset.
  readonly changed: readonly string[];
}

// One text per route key or pattern. No name holds a space.
export function keyText(key: RouteKey | Pattern | undefined): string {
  if (key === undefined) return "";
  return `${key.callerService} ${key.callerCluster} ${key.calleeService} ${key.calleeMethod}`;
}

// The first message of a stream says reset; what comes before one belongs to nothing.
export function fold(before: Fleet | undefined, message: WatchResponse): Fleet | undefined {
  if (before === undefined && !message.reset) return undefined;
  const base = message.reset ? undefined : before;
  const routes = new Map(base?.routes);
  const rules = new Map(base?.rules);
  for (const key of message.removedRoutes) routes.delete(keyText(key));
  for (const key of message.removedRules) rules.delete(keyText(key));
  for (const route of message.routes) routes.set(keyText(route.key), route);
  for (const rule of message.rules) rules.set(keyText(rule.rule?.key), rule);
  return {
    epoch: message.epoch,
    revision: message.revision,
    clients: message.connectedClients,
    asOf: message.asOf,
    staleSince: message.staleSince,
    window: message.window,
    routes,
    rules,
    kills: message.continued && base ? base.kills : message.kills,
    missingReplicas: message.missingReplicas,
    changed: message.reset ? [] : message.rules.map((rule) => keyText(rule.rule?.key)),
  };
}

// The message that brings a newcomer to the same state.
export function asReset(fleet: Fleet): WatchResponse {
  const message = create(WatchResponseSchema, {
    reset: true,
    epoch: fleet.epoch,
    revision: fleet.revision,
    connectedClients: fleet.clients,
    routes: [...fleet.routes.values()],
    rules: [...fleet.rules.values()],
    kills: [...fleet.kills],
    missingReplicas: [...fleet.missingReplicas],
  });
  if (fleet.asOf) message.asOf = fleet.asOf;
  if (fleet.staleSince) message.staleSince = fleet.staleSince;
  if (fleet.window) message.window = fleet.window;
  return message;
}

export interface Totals {
  readonly calls: number;
  readonly attempts: number;
  // Attempts / calls; undefined = no calls in the window.
  readonly amplification: number | undefined;
  // Failed calls / calls; undefined = no calls in the window.
  readonly errors: number | undefined;
}

export function totals(routes: Iterable<RouteStats>): Totals {
  let [calls, attempts, failed] = [0, 0, 0];
  for (const route of routes) {
    calls += route.callsPerS;
    attempts += route.attemptsPerS;
    failed += route.callsPerS * route.errorShare;
  }
  const per = (part: number) => (calls > 0 ? part / calls : undefined);
  return { calls, attempts, amplification: per(attempts), errors: per(failed) };
}
