import { create } from "@bufbuild/protobuf";
import { ClientSchema } from "$wire/fleet_pb";
import { expect, test } from "vitest";
import { kill } from "../testing";
import { obedience } from "./reach";

const KILL = kill("stock", { revision: 7n, key: { callerService: "orders", callerCluster: "*", calleeService: "stock", calleeMethod: "*" } });

function client(service: string, fields: object = {}) {
  return create(ClientSchema, { identity: { service, cluster: "default", instance: "1" }, acknowledgedRevision: 7n, features: ["kill_switch"], ...fields });
}

test("a kill is obeyed by those who have confirmed it, of those whom it concerns", () => {
  const behind = client("orders", { acknowledgedRevision: 6n });
  const without = client("orders", { features: ["base"] });
  const refusing = client("orders", { refused: [{ key: KILL.key, revision: 7n, kill: true, reason: "not possible" }] });
  expect(obedience(KILL, [client("orders"), client("gateway")])).toEqual({ obey: 1, of: 1 });
  expect(obedience(KILL, [client("orders"), behind, without, refusing])).toEqual({ obey: 1, of: 4 });
  expect(obedience(KILL, [])).toEqual({ obey: 0, of: 0 });
});

test("who refuses a rule of the same key obeys the kill", () => {
  const refused = [{ key: KILL.key, revision: 3n, reason: "too much" }];
  expect(obedience(KILL, [client("orders", { refused })])).toEqual({ obey: 1, of: 1 });
});
