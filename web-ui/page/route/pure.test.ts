import { create } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Fate } from "$wire/distribution_pb";
import { ChangeSchema } from "$wire/history_pb";
import { Mode, PolicySchema } from "$wire/policy_pb";
import { expect, test } from "vitest";
import { route } from "../testing";
import { atProcesses, breakerLine, breakerSettings } from "./gates";
import { meaning } from "./meanings";
import { holding, says } from "./says";
import { marksOf, touching } from "./touching";

const key = route("orders").key;
const pattern = (callerService: string, calleeService: string, calleeMethod = "*") => ({ callerService, callerCluster: "*", calleeService, calleeMethod });
const change = (fields: object) =>
  create(ChangeSchema, { at: { seconds: 1_000n }, author: "ann", ...fields } as MessageInitShape<typeof ChangeSchema>);
const rule = (key: ReturnType<typeof pattern>) => ({ key: { kind: { case: "rule" as const, value: key } }, before: { kind: { case: "rule" as const, value: { key } } },
  after: { kind: { case: "rule" as const, value: { key } } } });
const kill = (key: ReturnType<typeof pattern>) => ({ key: { kind: { case: "kill" as const, value: key } }, after: { kind: { case: "kill" as const, value: { key } } } });

test("a change touches a route when one of its patterns matches", () => {
  const found = touching([
    change({ revision: 4n, objects: [rule(pattern("*", "stock"))] }),
    change({ revision: 5n, objects: [rule(pattern("gateway", "stock"))] }),
    change({ revision: 6n, objects: [rule(pattern("*", "*", "shop.Stock/*")), kill(pattern("orders", "*"))] }),
  ], key);
  expect(found.map(({ words, href }) => [words, href])).toEqual([
    ["rule changed, kill set", "/history?rev=6"],
    ["rule changed", "/history?rev=4"],
  ]);
});

test("a change that comes in two answers is one", () => {
  const found = touching([change({ revision: 4n, objects: [rule(pattern("*", "stock"))] }), change({ revision: 4n, objects: [kill(pattern("*", "*"))] })], key);
  expect(found.map(({ words }) => words)).toEqual(["rule changed, kill set"]);
});

test("a mark stands by this machine's clock and says who and what", () => {
  const [mark] = marksOf(touching([change({ revision: 4n, objects: [kill(pattern("*", "stock"))] })], key), 30);
  expect(mark).toMatchObject({ at: 970, sign: "■", href: "/history?rev=4" });
  expect(mark?.words).toMatch(/kill set by ann at .*, revision 4/);
});

test("the breaker's line is its ratio of successes, and never below its least failures", () => {
  const policy = create(PolicySchema, { mode: Mode.ENFORCE, retryBreaker: { enabled: true, ratio: 0.1, minFailures: 3, buckets: 10, bucketLength: { seconds: 1n } } });
  const at = (windowFailures: bigint, windowSuccesses: bigint, clients = 1) => breakerLine(route("orders", { windowFailures, windowSuccesses, clients }), policy);
  expect(at(12n, 400n)).toMatchObject({ line: 40, used: 0.3, windowS: 10 });
  expect(at(4n, 0n)).toMatchObject({ line: 3 });
  expect(at(4n, 0n, 4)).toMatchObject({ line: 12 });
  expect(breakerLine(route("orders"), create(PolicySchema, { retryBreaker: { enabled: false, ratio: 0.1 } }))).toBeUndefined();
  expect(breakerLine(route("orders"), undefined)).toBeUndefined();
  expect(breakerSettings(policy)).toBe("10.0 % of successes, at least 3 failures per process");
});

test("a gate says at how many processes it holds", () => {
  const three = route("orders", { clients: 3 });
  expect(atProcesses(0, three, "refuses", "lets through")).toBe("lets through");
  expect(atProcesses(2, three, "refuses", "")).toBe("refuses at 2 of 3 processes");
  expect(atProcesses(3, three, "refuses", "")).toBe("refuses at all 3 processes");
});

test.each([
  ["storm", { callsPerS: 40, attemptsPerS: 108, amplification: 2.7, errorShare: 0.05 }, /×2\.70.*68\.0 retries\/s; 5\.0 %/],
  ["stopped", { callsPerS: 40, attemptsPerS: 108, amplification: 2.7, killed: 1, awaitedKill: pattern("*", "stock") }, /verifying By kill \* \* stock \*\..*×2\.70, 68\.0 retries/],
  ["failing", { callsPerS: 40, attemptsPerS: 40, errorShare: 0.3, breakerRefuses: 1, clients: 1 }, /30\.0 %.*do not multiply the failures; the retry breaker refuses/],
  ["calm", {}, /About one attempt per call; no call fails/],
  ["silent", { callsPerS: 0, killed: 1 }, /a kill switch stops retries/],
])("a route says at once that it is %s", (level, fields, words) => {
  const said = says(route("orders", fields));
  expect(said.level).toBe(level);
  expect(`${said.answer} ${said.why}`).toMatch(words);
});

test("a route on an observing rule claims no effect", () => {
  const held = { breakerRefuses: 1, budgetRefuses: 1, circuitOpen: 1, clients: 1 };
  expect(holding(route("orders", { ...held, mode: Mode.OBSERVE })).filter((words) => !words.includes("would"))).toEqual([]);
  expect(holding(route("orders", { ...held, mode: Mode.ENFORCE })).filter((words) => words.includes("would"))).toEqual([]);
});

test("every fate that the wire knows has a meaning", () => {
  for (const fate of Object.values(Fate)) {
    if (typeof fate === "number" && fate !== Fate.UNSPECIFIED) expect(meaning(fate).words.length, Fate[fate]).toBeGreaterThan(10);
  }
});
