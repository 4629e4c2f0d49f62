import { expect, test } from "vitest";
import { asReset, fold, totals } from "./state";
import { keyText } from "../format/key";
import { compact } from "./compact";
import { kill, message as wire, route, rule } from "../testing/messages";

const message = (fields: object) => compact(wire(fields));

const start = message({ reset: true, revision: 7n, routes: [route("gateway"), route("orders")], rules: [rule("orders", 7n)] });

test("a message before the first reset is not believed", () => {
  expect(fold(undefined, message({ reset: false, routes: [route("gateway")] }))).toBeUndefined();
});

test("what a message leaves out stays as it was", () => {
  const after = fold(fold(undefined, start), message({ revision: 8n, routes: [route("gateway", { amplification: 2 })] }));
  expect([...(after?.routes.values() ?? [])].map(({ amplification }) => amplification)).toEqual([2, 1]);
  expect(after?.rules.size).toBe(1);
  expect(after?.revision).toBe(8n);
});

test("removed routes and rules go, the others stay", () => {
  const gone = message({ removedRoutes: [route("gateway").key], removedRules: [rule("orders", 7n).rule?.key] });
  const after = fold(fold(undefined, start), gone);
  expect([...(after?.routes.keys() ?? [])]).toEqual([keyText(route("orders").key)]);
  expect(after?.rules.size).toBe(0);
});

test("a reset forgets everything before it and marks nothing", () => {
  const after = fold(fold(undefined, start), message({ reset: true, rules: [rule("stock", 9n)] }));
  expect(after?.routes.size).toBe(0);
  expect([...(after?.rules.keys() ?? [])]).toEqual([keyText(rule("stock", 9n).rule?.key)]);
  expect(after?.changed).toEqual([]);
});

test("a late tab receives the samples up to then", () => {
  const at = (seconds: bigint) => ({ seconds, nanos: 0 });
  const past = [{ until: at(90n), callsPerS: 5 }];
  const opened = fold(undefined, message({ reset: true, asOf: at(95n), routes: [route("orders")], past }));
  const soon = fold(opened, message({ asOf: at(96n) }));
  const later = fold(soon, message({ asOf: at(101n) }));
  expect(later?.past.map(({ until, callsPerS }) => [until?.seconds, callsPerS])).toEqual([[90n, 5], [101n, 10]]);
  expect(soon?.past).toHaveLength(1);
  if (later === undefined) throw new Error("there is a fleet");
  expect(fold(undefined, asReset(later))?.past).toEqual(later.past);
});

test("a rule that a later message brings is marked as changed", () => {
  const after = fold(fold(undefined, start), message({ rules: [rule("orders", 8n)] }));
  expect(after?.changed).toEqual([keyText(rule("orders", 8n).rule?.key)]);
});

test("what a long first message goes on to bring is not marked either", () => {
  const whole = fold(fold(undefined, start), message({ continued: true, rules: [rule("stock", 6n)] }));
  expect(whole?.rules.size).toBe(2);
  expect(whole?.changed).toEqual([]);
  const later = fold(fold(whole, message({})), message({ continued: true, rules: [rule("stock", 8n)] }));
  expect(later?.changed).toEqual([keyText(rule("stock", 8n).rule?.key)]);
});

test("unchanged rows are the same objects, so that they are not sorted", () => {
  const before = fold(undefined, start);
  const after = fold(before, message({ revision: 8n, routes: [route("gateway", { amplification: 2 })] }));
  expect(after?.rules).toBe(before?.rules);
  expect(after?.routes).not.toBe(before?.routes);
});

test("of a rule a tab gets a row without anything nested, which is quick to copy", () => {
  const [row] = message({ rules: [rule("orders", 7n)] }).rules;
  expect(row).toMatchObject({ callerService: "orders", maxAttempts: 3, attempts: "3", breaker: "credit", revision: 7n, applied: 4 });
  expect(Object.values(row ?? {}).filter((value) => typeof value === "object")).toEqual([]);
});

test("kills are sent once per interval and stay for its further messages", () => {
  const first = fold(undefined, message({ reset: true, kills: [kill("stock")] }));
  const further = fold(first, message({ continued: true, routes: [route("orders")] }));
  expect(further?.kills).toHaveLength(1);
  expect(fold(further, message({}))?.kills).toHaveLength(0);
});

test("the state before a fold is left alone", () => {
  const before = fold(undefined, start);
  fold(before, message({ removedRoutes: [route("gateway").key] }));
  expect(before?.routes.size).toBe(2);
});

test("a newcomer is brought to the same state by one message", () => {
  const state = fold(fold(undefined, start), message({ revision: 8n, rules: [rule("stock", 8n)], connectedClients: 3, kills: [kill("stock")] }));
  expect(state).toBeDefined();
  if (state === undefined) return;
  expect(fold(undefined, asReset(state))).toEqual({ ...state, first: true, changed: [] });
});

test("the fleet's amplification is attempts over calls, and none without calls", () => {
  const busy = [route("a", { callsPerS: 10, attemptsPerS: 30 }), route("b", { callsPerS: 30, attemptsPerS: 30 })];
  expect(totals(busy)).toEqual({ calls: 40, attempts: 60, amplification: 1.5, errors: 0 });
  expect(totals([]).amplification).toBeUndefined();
});
