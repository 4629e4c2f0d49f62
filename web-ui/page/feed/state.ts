// All messages of the stream folded into one value.
//
// A pure reducer, shared by tabs, the worker and tests. It has no clock: changes are found by comparison with
// the value before.
import { create } from "@bufbuild/protobuf";
import { WatchResponseSchema } from "$wire/fleet_pb";
import type { Past, RouteStats, WatchResponse } from "$wire/fleet_pb";
import type { KillSwitch } from "$wire/kills_pb";
import { keyText } from "../format/key";
import type { Names } from "../format/key";
import { withSpan } from "./past";
import type { CompactMessage, RuleRow } from "./compact";

export interface Fleet {
  readonly epoch: string;
  readonly revision: bigint;
  readonly clients: number;
  readonly asOf: WatchResponse["asOf"];
  readonly staleSince: WatchResponse["staleSince"];
  // The store contains other data than the server knew, and no operator has accepted it.
  readonly unacceptedStore: WatchResponse["unacceptedStore"];
  // Clients with rules that the store lacks.
  readonly heldClients: number;
  readonly window: WatchResponse["window"];
  readonly routes: ReadonlyMap<string, RouteStats>;
  readonly rules: ReadonlyMap<string, RuleRow>;
  // Samples of all routes together, for tabs that open later.
  readonly past: readonly Past[];
  // In force.
  readonly kills: readonly KillSwitch[];
  // Replicas whose clients are missing from the statistics.
  readonly missingReplicas: readonly string[];
  // The last message was the first of its stream, or continued it: its content is not new.
  readonly first: boolean;
  // Rules whose settings or delivery the last message changed.
  readonly changed: readonly string[];
}

// The first message of a stream has `reset`; messages before it are dropped.
export function fold(before: Fleet | undefined, message: CompactMessage): Fleet | undefined {
  if (before === undefined && !message.reset) return undefined;
  const base = message.reset ? undefined : before;
  const first = message.reset || (message.continued && base?.first === true);
  const routes = changed(base?.routes, message.removedRoutes, message.routes, (route) => route.key);
  return {
    epoch: message.epoch,
    revision: message.revision,
    clients: message.connectedClients,
    asOf: message.asOf,
    staleSince: message.staleSince,
    unacceptedStore: message.unacceptedStore,
    heldClients: message.heldClients,
    window: message.window,
    routes,
    rules: changed(base?.rules, message.removedRules, message.rules, (rule) => rule),
    past: base === undefined || message.continued ? (base?.past ?? message.past) : withSpan(base.past, routes.values(), message.asOf),
    kills: message.continued && base ? base.kills : message.kills,
    missingReplicas: message.missingReplicas,
    first,
    changed: first ? [] : message.rules.map(keyText),
  };
}

// Returns the same object if nothing changes, so that nothing is sorted or rendered again.
function changed<Row>(
  before: ReadonlyMap<string, Row> = new Map(),
  gone: readonly Names[],
  now: readonly Row[],
  key: (row: Row) => Names | undefined,
): ReadonlyMap<string, Row> {
  if (gone.length === 0 && now.length === 0) return before;
  const rows = new Map(before);
  for (const key of gone) rows.delete(keyText(key));
  for (const row of now) rows.set(keyText(key(row)), row);
  return rows;
}

// Returns the message that produces this state in a new tab.
export function asReset(fleet: Fleet): CompactMessage {
  const message = create(WatchResponseSchema, {
    reset: true,
    epoch: fleet.epoch,
    revision: fleet.revision,
    connectedClients: fleet.clients,
    heldClients: fleet.heldClients,
    routes: [...fleet.routes.values()],
    past: [...fleet.past],
    kills: [...fleet.kills],
    missingReplicas: [...fleet.missingReplicas],
  });
  if (fleet.asOf) message.asOf = fleet.asOf;
  if (fleet.staleSince) message.staleSince = fleet.staleSince;
  if (fleet.unacceptedStore) message.unacceptedStore = fleet.unacceptedStore;
  if (fleet.window) message.window = fleet.window;
  return { ...message, rules: [...fleet.rules.values()] };
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
