// State of the page: all messages of the stream so far, folded into one value.
//
// A pure reducer over what is told, so that a tab, the shared worker and the tests agree. It keeps no
// clock: what is new is found by comparing with the value before.
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
  // The store holds other data than the server knew, which no operator has accepted.
  readonly unacceptedStore: WatchResponse["unacceptedStore"];
  // Clients that hold more than the store.
  readonly heldClients: number;
  readonly window: WatchResponse["window"];
  readonly routes: ReadonlyMap<string, RouteStats>;
  readonly rules: ReadonlyMap<string, RuleRow>;
  // Recent samples of all routes together, for tabs that join later.
  readonly past: readonly Past[];
  // All that are in force.
  readonly kills: readonly KillSwitch[];
  // Whose clients' figures are missing.
  readonly missingReplicas: readonly string[];
  // The last message was the first of its stream or continued it: its content is not new.
  readonly first: boolean;
  // Rules whose setting or delivery the last message changed.
  readonly changed: readonly string[];
}

// The first message of a stream has reset; messages before one are dropped.
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

// The same object if nothing changes, so that nothing is sorted or rendered again.
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

// The message that brings a newcomer to the same state.
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
