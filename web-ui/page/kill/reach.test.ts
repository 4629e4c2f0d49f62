import { create } from "@bufbuild/protobuf";
import { Fate } from "$wire/distribution_pb";
import { ClientSchema, RouteStatsSchema } from "$wire/fleet_pb";
import { expect, test } from "vitest";
import { kill } from "../testing/messages";
import { killHref, deliveryOf, reachOf, setTogether } from "./reach";

const KILL = kill("stock", { revision: 7n, key: { callerService: "orders", callerCluster: "*", calleeService: "stock", calleeMethod: "*" } });

function client(service: string, fields: object = {}) {
  return create(ClientSchema, { identity: { service, cluster: "default", instance: "1" }, acknowledgedRevision: 7n, features: ["kill_switch"], ...fields });
}

test("a kill counts as delivered to clients that acknowledged it", () => {
  const behind = client("orders", { acknowledgedRevision: 6n });
  const without = client("orders", { features: ["base"] });
  const refusing = client("orders", { refused: [{ key: KILL.key, revision: 7n, kill: true, reason: "not possible" }] });
  expect(deliveryOf(KILL, [client("orders"), client("gateway")])).toEqual({ delivered: 1, of: 1 });
  expect(deliveryOf(KILL, [client("orders"), behind, without, refusing])).toEqual({ delivered: 1, of: 4 });
  expect(deliveryOf(KILL, [])).toEqual({ delivered: 0, of: 0 });
});

test("a kill that is not stored has no confirmations, and no change in common with others", () => {
  const held = { ...KILL, unstored: true };
  expect(deliveryOf(held, [client("orders")])).toBeUndefined();
  expect(setTogether([KILL, KILL, held, { ...held }])).toEqual([[KILL, KILL]]);
});

test("a client that rejected a rule of the same key still has the kill", () => {
  const refused = [{ key: KILL.key, revision: 3n, reason: "too much" }];
  expect(deliveryOf(KILL, [client("orders", { refused })])).toEqual({ delivered: 1, of: 1 });
});

test("what is stopped has its price: the calls that succeed only by a repeat", () => {
  const route = create(RouteStatsSchema, {
    key: { callerService: "orders", callerCluster: "default", calleeService: "stock", calleeMethod: "p.S/M" },
    callsPerS: 40,
    attemptsPerS: 100,
    fates: [
      { fate: Fate.OK, perS: 10 },
      { fate: Fate.OK_AFTER_RETRY, perS: 20 },
      { fate: Fate.OK_BY_HEDGE, perS: 1 },
      { fate: Fate.OK_AFTER_RETRY, would: true, perS: 100 },
      { fate: Fate.ATTEMPTS_EXHAUSTED, perS: 9 },
    ],
  });
  const any = { callerService: "*", callerCluster: "*", calleeService: "stock", calleeMethod: "*" };
  expect(reachOf(any, [route])).toMatchObject({ retriesPerS: 60, callsPerS: 40, savedPerS: 21 });
  expect(reachOf({ ...any, calleeService: "ledger" }, [route])).toMatchObject({ retriesPerS: 0, savedPerS: 0 });
});

test("the way to stop a service's retries names it, whatever its name", () => {
  expect(killHref("a&b")).toBe("/kill?callee=a%26b");
});
