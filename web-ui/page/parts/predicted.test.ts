// The predicted effect of a change as text.
import { create } from "@bufbuild/protobuf";
import { GuardSchema } from "$wire/guards_pb";
import { KillSwitchSchema } from "$wire/kills_pb";
import { Prediction_Callee as Callee, RuleSchema, WhatIfResponseSchema } from "$wire/rules_pb";
import { expect, test } from "vitest";
import { basis, question, rows, worst } from "./predicted";

const key = { callerService: "shop", callerCluster: "*", calleeService: "stock", calleeMethod: "*" };
const was = create(RuleSchema, { key, owner: "team-a" });
const is = create(RuleSchema, { key, owner: "team-b" });

test("the request has the change and its owner", () => {
  expect(question(was, is)).toEqual({ changes: [{ kind: { case: "put", value: is } }], options: { owner: "team-a" } });
  expect(question(undefined, is)).toEqual({ changes: [{ kind: { case: "put", value: is } }], options: { owner: "" } });
  expect(question(was, undefined)).toEqual({ changes: [{ kind: { case: "delete", value: was.key } }], options: { owner: "team-a" } });
  const guard = create(GuardSchema, { key });
  expect(question(undefined, guard)?.changes?.[0]?.kind?.case).toBe("putGuard");
  expect(question(guard, undefined)?.changes?.[0]?.kind?.case).toBe("deleteGuard");
  expect(question(undefined, undefined)).toBeUndefined();
  expect(question(create(KillSwitchSchema, { key }), undefined)).toBeUndefined();
});

test("each behaviour of the callee is a row, marked where repeats make much of the load", () => {
  const side = (attemptsPerS: number, successShare: number) => ({ attemptsPerS, attemptsPerCall: attemptsPerS / 100, successShare });
  const answer = create(WhatIfResponseSchema, {
    together: [
      { callee: Callee.AS_MEASURED, before: side(100, 0.98), after: side(102, 0.9996) },
      { callee: Callee.TENTH_FAILING, before: side(120, 0.9), after: side(120, 0.9) },
      { callee: Callee.OUTAGE, before: side(100, 0), after: side(300, 0) },
    ],
  });
  expect(rows(answer)).toEqual([
    { callees: ["as measured"], load: { before: "100", after: "102" }, extra: "+2.0 %", success: { before: "98.0 %", after: "100 %" }, isHigh: false },
    { callees: ["at least 10 % failing"], load: { before: "120", after: "120" }, extra: "", success: { before: "90.0 %", after: "90.0 %" }, isHigh: false },
    { callees: ["in total outage"], load: { before: "100", after: "300" }, extra: "+200 %", success: { before: "0 %", after: "0 %" }, isHigh: true },
  ]);
  const less = create(WhatIfResponseSchema, { together: [{ callee: Callee.OUTAGE, before: side(300, 0), after: side(200, 0) }] });
  expect(rows(less)[0]).toMatchObject({ extra: "−33 %", isHigh: false });
});

test("the basis names the routes and those left out", () => {
  const one = create(WhatIfResponseSchema, { routes: [{ callsPerS: 12.5 }] });
  expect(basis(one)).toBe("A simulation of the route that changes, from the statistics of the last minute: 12.5 calls/s.");
  const many = create(WhatIfResponseSchema, { routes: [{ callsPerS: 100 }, { callsPerS: 50 }], routesLeftOut: 3 });
  expect(basis(many)).toBe("A simulation of the 2 busiest routes that change, from the statistics of the last minute: 150 calls/s. 3 less busy routes change too.");
});

test("the worst bound of all changed routes is shown on each side", () => {
  const at = (maxAttempts: number, sends: bigint) => ({ bound: { maxAttempts }, chain: { sends } });
  const answer = create(WhatIfResponseSchema, {
    routes: [{ before: at(3, 5n), after: at(1, 3n) }, { before: at(2, 9n), after: at(2, 2n) }],
    withoutTraffic: [{ before: { maxAttempts: 4 }, after: { maxAttempts: 1 } }],
  });
  const { before, after } = worst(answer);
  expect([before?.bound?.maxAttempts, before?.chain?.sends]).toEqual([4, 9n]);
  expect([after?.bound?.maxAttempts, after?.chain?.sends]).toEqual([2, 3n]);
  expect(worst(create(WhatIfResponseSchema, {})).before?.bound).toBeUndefined();
});
