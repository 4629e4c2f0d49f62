import { create } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Fate } from "$wire/distribution_pb";
import { ChangeSchema } from "$wire/history_pb";
import { Mode, PolicySchema, RetryBreakerMode } from "$wire/policy_pb";
import { expect, test } from "vitest";
import { route } from "../../testing/messages";
import { atProcesses, breakerHolds, breakerLine, breakerNow, breakerSettings } from "./gates";
import { blockedRetries } from "./blocked_retries";
import { meaning } from "./fate_meanings";
import { holding, verdictOf } from "./verdict";
import { marksOf, touching } from "./related_changes";

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

test("a mark uses the local clock and names author and change", () => {
  const [mark] = marksOf(touching([change({ revision: 4n, objects: [kill(pattern("*", "stock"))] })], key), 30);
  expect(mark).toMatchObject({ at: 970, sign: "■", href: "/history?rev=4" });
  expect(mark?.words).toMatch(/kill set by ann at .*, revision 4/);
});

const WINDOW = { enabled: true, ratio: 0.1, earn: 0.02, minFailures: 1, buckets: 10, bucketLength: { seconds: 1n } };
const breaking = (of: object) => create(PolicySchema, { mode: Mode.ENFORCE, retryBreaker: { ...WINDOW, ...of } });
const byRatio = breaking({ mode: RetryBreakerMode.RATIO });
const byCredit = breaking({ mode: RetryBreakerMode.CREDIT });

test("the breaker's line is its ratio of successes or a guard's", () => {
  const at = (policy: typeof byRatio, windowFailures: bigint, windowSuccesses: bigint) => breakerLine(route("orders", { windowFailures, windowSuccesses }), policy);
  expect(at(byRatio, 12n, 400n)).toMatchObject({ failures: 12, windowS: 10, line: { at: 40, used: 0.3, words: "retries are free up to" } });
  expect(at(byRatio, 4n, 0n)?.line).toMatchObject({ at: 0, used: Infinity });
  expect(at(byCredit, 12n, 400n)).toMatchObject({ failures: 12, successes: 400, line: undefined });
  expect(at(breaking({ maxRatio: 0.05 }), 12n, 400n)?.line).toMatchObject({ at: 20, words: "no retries above" });
  expect(at(breaking({ mode: RetryBreakerMode.RATIO, maxRatio: 0.05 }), 12n, 400n)?.line).toMatchObject({ at: 20, words: "no retries above" });
  expect(at(breaking({ mode: RetryBreakerMode.RATIO, minFailures: 0 }), 12n, 400n)?.line).toMatchObject({ at: 40, words: "no retries above" });
  expect(breakerLine(route("orders"), breaking({ enabled: false }))).toBeUndefined();
  expect(breakerLine(route("orders"), undefined)).toBeUndefined();
});

test("breaker blocks retries now or did within the window", () => {
  const now = (policy: typeof byRatio, fields: object) => {
    const stats = route("orders", { clients: 1, ...fields });
    return [breakerHolds(stats), policy.retryBreaker && breakerNow(stats, policy.retryBreaker)];
  };
  const recent = { fates: [{ fate: Fate.RETRY_BREAKER, perS: 1 }] };
  expect(now(byCredit, {})).toEqual([false, "no retry blocked"]);
  expect(now(byCredit, recent)).toEqual([true, "no credit for some retries"]);
  expect(now(byCredit, { ...recent, breakerRefuses: 1 })).toEqual([true, "no credit for a retry"]);
  expect(now(byRatio, { clients: 2, breakerRefuses: 1 })).toEqual([true, "blocks retries at 1 of 2 processes"]);
  expect(now(byRatio, { mode: Mode.OBSERVE })).toEqual([false, "would allow retries"]);
});

test("settings of the breaker are shown with their effect", () => {
  expect(breakerSettings(byCredit)).toBe("credit: 50 successful calls pay for one failed retry");
  expect(breakerSettings(breaking({ earn: 0.03, maxRatio: 0.2 }))).toBe("credit: 33.3 successful calls pay for one failed retry, no retries above 20.0 % of successes");
  expect(breakerSettings(byRatio)).toBe("free up to 10.0 % of successes, then 1 saved retry per process");
  expect(breakerSettings(breaking({ mode: RetryBreakerMode.RATIO, minFailures: 0, minSamples: 20 }))).toBe("free up to 10.0 % of successes, from 20 attempts");
});

const failing = (fates: readonly [Fate, number, boolean?][], fields: object = {}) =>
  route("orders", { fates: fates.map(([fate, perS, would = false]) => ({ fate, perS, would })), ...fields });
const TENTH: [Fate, number][] = [[Fate.OK, 100], [Fate.NOT_RETRYABLE, 18]];

test.each([
  ["no credit", Fate.RETRY_BREAKER, byCredit],
  ["above the ratio", Fate.RETRY_BREAKER, byRatio],
  ["retry breaker", Fate.RETRY_BREAKER, undefined],
  ["budget used up", Fate.BUDGET, byCredit],
  ["circuit open", Fate.CIRCUIT_OPEN, byCredit],
  ["kill switch", Fate.KILLED, byCredit],
  ["already retried by another service", Fate.CHAIN_RETRY_FLAG, byCredit],
  ["already retried by another service", Fate.CHAIN_NO_MORE_RETRY, byCredit],
  ["deadline", Fate.DEADLINE, byCredit],
  ["stop condition", Fate.STOP_WHEN, byCredit],
])("retries blocked are a share of the failed calls, for the reason: %s", (reason, fate, policy) => {
  expect(blockedRetries(failing([...TENTH, [fate, 2]]), policy)).toBe(`Blocked retries: 10.0 % of failed calls (${reason}).`);
});

test("the main reason is named, fates of one reason count together", () => {
  const mixed = failing([...TENTH, [Fate.RETRY_BREAKER, 3], [Fate.CHAIN_RETRY_FLAG, 2], [Fate.CHAIN_NO_MORE_RETRY, 2], [Fate.OK_AFTER_RETRY, 50]]);
  expect(blockedRetries(mixed, byCredit)).toBe("Blocked retries: 28.0 % of failed calls (mainly already retried by another service).");
});

test("a guard's ratio is the reason while more fails than it admits", () => {
  const limited = breaking({ maxRatio: 0.1 });
  const at = (windowFailures: bigint) => blockedRetries(failing([[Fate.RETRY_BREAKER, 1]], { windowFailures, windowSuccesses: 100n }), limited);
  expect([at(10n), at(11n)].map((words) => /\((.*)\)/.exec(words ?? "")?.[1])).toEqual(["no credit", "above the guard's ratio"]);
});

test("calls that a kill refuses are blocked by it, not by the circuit", () => {
  expect(blockedRetries(failing([[Fate.CIRCUIT_OPEN, 1]], { killed: 1 }), byCredit)).toContain("(kill switch)");
  expect(blockedRetries(failing([[Fate.CIRCUIT_OPEN, 1]], { killed: 1, circuitOpen: 1 }), byCredit)).toContain("(circuit open)");
});

test("observe mode shows would-be blocks; no block shows nothing", () => {
  const observed = failing([[Fate.RETRY, 3, true], [Fate.RETRY_BREAKER, 1, true]], { mode: Mode.OBSERVE });
  expect(blockedRetries(observed, byCredit)).toBe("Retries that would be blocked: 25.0 % of failed calls (no credit).");
  expect(blockedRetries(failing(TENTH), byCredit)).toBeUndefined();
  expect(blockedRetries(failing([[Fate.OK, 5], [Fate.RETRY_BREAKER, 0]]), byCredit)).toBeUndefined();
});

test("a gate shows the number of processes", () => {
  const three = route("orders", { clients: 3 });
  expect(atProcesses(0, three, "refuses", "lets through")).toBe("lets through");
  expect(atProcesses(2, three, "refuses", "")).toBe("refuses at 2 of 3 processes");
  expect(atProcesses(3, three, "refuses", "")).toBe("refuses at all 3 processes");
});

test.each([
  ["storm", { callsPerS: 40, attemptsPerS: 108, amplification: 2.7, errorShare: 0.05 }, /×2\.70.*68\.0 retries\/s; 5\.0 %/],
  ["stopped", { callsPerS: 40, attemptsPerS: 108, amplification: 2.7, killed: 1, awaitedKill: pattern("*", "stock") }, /verifying By kill \* \* stock \*\..*×2\.70, 68\.0 retries/],
  ["failing", { callsPerS: 40, attemptsPerS: 40, errorShare: 0.3, breakerRefuses: 1, clients: 1 }, /30\.0 %.*do not multiply the failures; the retry breaker blocks retries/],
  ["calm", {}, /About one attempt per call; no call fails/],
  ["silent", { callsPerS: 0, killed: 1 }, /a kill switch stops retries/],
])("the verdict of a route is %s", (level, fields, words) => {
  const verdict = verdictOf(route("orders", fields));
  expect(verdict.level).toBe(level);
  expect(`${verdict.answer} ${verdict.why}`).toMatch(words);
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
