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

test("blocked retries are a share of the failed calls, with the main reason", () => {
  const blocked = (fields: object) => blockedRetries(route("orders", { blockedRetries: { share: 0.28, reason: "no credit", ...fields } }));
  expect(blocked({})).toBe("Blocked retries: 28.0 % of failed calls (no credit).");
  expect(blocked({ mixed: true })).toBe("Blocked retries: 28.0 % of failed calls (mainly no credit).");
  expect(blocked({ would: true })).toBe("Retries that would be blocked: 28.0 % of failed calls (no credit).");
  expect(blockedRetries(route("orders"))).toBeUndefined();
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
