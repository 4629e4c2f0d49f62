import { create } from "@bufbuild/protobuf";
import { TimestampSchema } from "@bufbuild/protobuf/wkt";
import { Fate } from "$wire/distribution_pb";
import { Jitter, OverMax, PolicySchema, RetryBreakerMode } from "$wire/policy_pb";
import type { Policy } from "$wire/policy_pb";
import { expect, test } from "vitest";
import { waitMs } from "../feed/link";
import { held, matches, nextSort, page, sorted } from "../parts/table/order";
import { kill } from "../testing/messages";
import { attempts, age, backoff, breaker, clock, fateName, isHigh, killed, rate, share, some, span, times, timesWithin, undoKill, whole } from "./words";

const retrying = (retry: object): Policy => create(PolicySchema, { retry });

test.each([[0, "0.0"], [0.02, "0.02"], [9.96, "10.0"], [99.94, "99.9"], [1234.4, "1,234"]])("rate %d is %s", (perS, words) => {
  expect(rate(perS)).toBe(words);
});

test("a clock has two digits at every hour", () => {
  const early = new Date(2026, 10, 22, 3, 7, 5).getTime() / 1000;
  expect(clock(create(TimestampSchema, { seconds: BigInt(early) }))).toMatch(/^03:07:05 \S+$/);
});

test("counts have separators, and things their plural", () => {
  expect([whole(999), whole(10_000), whole(1_234_567n)]).toEqual(["999", "10,000", "1,234,567"]);
  expect([some(1, "route"), some(0, "route"), some(12_000n, "route")]).toEqual(["1 route", "0 routes", "12,000 routes"]);
});

test.each([[undefined, "–"], [0, "–"], [1, "×1.00"], [26.999, "×27.00"]])("amplification %s is %s", (value, words) => {
  expect(times(value)).toBe(words);
});

test.each([[3.01, 3, "×3.00"], [3.2, 3, "×3.20"], [2.99, 3, "×2.99"], [27.2, 27n, "×27.00"], [2.5, undefined, "×2.50"], [0, 3, "–"]])(
  "amplification %s of at most %s is %s",
  (value, most, words) => {
    expect(timesWithin(value, most)).toBe(words);
  },
);

test("high begins above one and a half", () => {
  expect([1.5, 1.51, undefined].map(isHigh)).toEqual([false, true, false]);
});

test.each([[0, "0 %"], [0.0004, "<0.1 %"], [0.123, "12.3 %"], [1, "100 %"]])("share %d is %s", (part, words) => {
  expect(share(part)).toBe(words);
});

test.each([
  [{ seconds: 0n, nanos: 850_000 }, "850 µs"],
  [{ seconds: 0n, nanos: 25_000_000 }, "25 ms"],
  [{ seconds: 1n, nanos: 500_000_000 }, "1.5 s"],
  [{ seconds: 86_400n, nanos: 0 }, "24 h"],
])("a duration is short", (duration, words) => {
  expect(span({ $typeName: "google.protobuf.Duration", ...duration })).toBe(words);
});

test("ages are told in whole seconds, minutes, hours", () => {
  expect([900, 61_000, 3_700_000].map(age)).toEqual(["0 s", "1 min 1 s", "1 h 1 min"]);
});

test("a policy that leaves settings out names no number of its own", () => {
  const bare = retrying({});
  expect([attempts(bare), backoff(bare), breaker(bare)]).toEqual(["default", "default", "default"]);
  const once = create(PolicySchema, { retryBreaker: { enabled: false } });
  expect([attempts(once), backoff(once), breaker(once)]).toEqual(["1", "sent once", "off"]);
});

test("backoffs in words", () => {
  const delay = { nanos: 100_000_000 };
  const fixed = retrying({ backoff: { kind: { case: "fixed", value: { delay, jitter: Jitter.PLUS_MINUS, jitterShare: 0.2 } } } });
  const random = retrying({ backoff: { kind: { case: "random", value: { min: delay, max: { seconds: 1n } } } } });
  expect([backoff(fixed), backoff(random)]).toEqual(["fixed 100 ms, ±20 %", "random 100 ms to 1 s"]);
});

test("the longer backoffs, hedges and the retry breaker in words", () => {
  const ms = (n: number) => ({ nanos: n * 1_000_000 });
  const waits = (kind: object) => backoff(retrying({ backoff: { kind } }));
  const shorter = { seconds: 0n, nanos: -5_000_000 };
  expect([
    waits({ case: "incrementing", value: { initial: ms(50), step: shorter, max: ms(80) } }),
    waits({ case: "fibonacci", value: { unit: ms(10), max: ms(80), overMax: OverMax.STOP } }),
    waits({ case: "custom", value: { delays: [ms(5), { seconds: 1n }] } }),
    waits({ case: "sum", value: { parts: [{ kind: { case: "none", value: {} } }, { kind: { case: "fixed", value: { delay: ms(5) } } }] } }),
    waits({ case: "byCode", value: { codes: [] } }),
  ]).toEqual([
    "50 ms, by −5 ms up to 80 ms",
    "fibonacci 10 ms up to 80 ms, then the call ends",
    "5 ms, 1 s",
    "no delay + fixed 5 ms",
    "default, others for some codes",
  ]);
  const hedged = create(PolicySchema, { hedge: { maxHedges: 1 }, retryBreaker: { ratio: 0.2, mode: RetryBreakerMode.RATIO } });
  expect([attempts(hedged), backoff(hedged), breaker(hedged)]).toEqual(["2, hedged", "no retries", "ratio 0.2"]);
  const paid = (of: object) => breaker(create(PolicySchema, { retryBreaker: of }));
  expect([paid({}), paid({ earn: 0.05, maxRatio: 0.1 })]).toEqual(["credit", "credit 0.05, never above 0.1"]);
  const mixed = create(PolicySchema, { hedge: {}, retry: { maxAttempts: 3 } });
  expect(attempts(mixed)).toBe("3, hedged");
});

test("fates read as words, unknown ones too", () => {
  expect([fateName(Fate.CHAIN_NO_MORE_RETRY), fateName(99 as Fate)]).toEqual(["given up downstream", "fate 99"]);
});

test("waits double from a quarter of a second to eight and are half chance", () => {
  expect([1, 2, 6, 50].map((failures) => waitMs(failures, 1))).toEqual([250, 500, 8000, 8000]);
  expect(waitMs(1, 0)).toBe(125);
});

test("equal rows keep the order of their names in both directions", () => {
  const rows = [{ name: "b", n: 1 }, { name: "a", n: 1 }, { name: "c", n: 2 }];
  const names = (sort: string) => sorted(rows, { n: (row) => row.n }, sort, (row) => row.name).map((row) => row.name).join("");
  expect([names("n"), names("-n"), names("constructor")]).toEqual(["abc", "cab", "abc"]);
});

test("held rows stay in place and new ones follow", () => {
  expect(held(["new", "a", "b"], ["b", "gone", "a"], (row) => row)).toEqual(["b", "a", "new"]);
});

test("figures fall first, names rise first, a second press turns round", () => {
  expect([nextSort("caller", "calls", true), nextSort("-calls", "calls", true), nextSort("calls", "caller", false)])
    .toEqual(["-calls", "calls", "caller"]);
});

test("a page beyond the last is the last", () => {
  const rows = Array.from({ length: 250 }, (_, at) => at);
  expect(page(rows, 99)).toMatchObject({ number: 3, of: 3 });
  expect(page(rows, NaN)).toMatchObject({ number: 1 });
  expect(page([], 1)).toEqual({ rows: [], number: 1, of: 1 });
});

test("every word of the filter must be found", () => {
  expect(matches("gateway default orders shop.Orders/Place", "ORDERS gate")).toBe(true);
  expect(matches("gateway default orders shop.Orders/Place", "orders stock")).toBe(false);
});

test.each([
  ["*", "*", {}, "retries everywhere are stopped", "damper unkill --all"],
  ["shop", "*", {}, "retries from shop are stopped", "damper unkill --caller 'shop'"],
  ["shop", "stock", { calls: true }, "all calls from shop to stock are rejected", "damper unkill --caller 'shop' --callee 'stock'"],
  ["*", "o'ne", {}, "retries to o'ne are stopped", "damper unkill --callee 'o'\\''ne'"],
])("a kill from %s to %s is said, and how to end it", (callerService, calleeService, fields, words, command) => {
  const key = { callerService, callerCluster: "*", calleeService, calleeMethod: "*" };
  const set = kill(calleeService, { ...fields, key });
  expect([killed(set), undoKill(set)]).toEqual([words, command]);
});
