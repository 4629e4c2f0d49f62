import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { Jitter, OverMax, PolicySchema, RetryBreakerMode } from "$wire/policy_pb";
import type { Policy } from "$wire/policy_pb";
import { attempts, backoff, breaker } from "./policy";

const retrying = (retry: object): Policy => create(PolicySchema, { retry });

test("a policy that leaves settings out names no number of its own", () => {
  const bare = retrying({});
  expect([attempts(bare), backoff(bare), breaker(bare)]).toEqual(["default", "default", "default"]);
  const once = create(PolicySchema, { retryBreaker: { enabled: false } });
  expect([attempts(once), backoff(once), breaker(once)]).toEqual(["1", "sent once", "off"]);
});

test("backoffs as text", () => {
  const delay = { nanos: 100_000_000 };
  const fixed = retrying({ backoff: { kind: { case: "fixed", value: { delay, jitter: Jitter.PLUS_MINUS, jitterShare: 0.2 } } } });
  const random = retrying({ backoff: { kind: { case: "random", value: { min: delay, max: { seconds: 1n } } } } });
  expect([backoff(fixed), backoff(random)]).toEqual(["fixed 100 ms, ±20 %", "random 100 ms to 1 s"]);
});

test("other backoffs, hedges and the retry breaker as text", () => {
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
