import { create } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Fate, FailedCallSchema } from "$wire/distribution_pb";
import { RouteFailureSchema } from "$wire/fleet_pb";
import { Code } from "$wire/policy_pb";
import { expect, test } from "vitest";
import { ago, barsOf, codeName, exactly, rowsOf } from "./failed_calls";
import { Reading } from "./paused_list.svelte";

const call = (fields: MessageInitShape<typeof FailedCallSchema>) => create(FailedCallSchema, fields);
const ms = (ms: number) => ({ nanos: ms * 1_000_000 });

test("bars stand where the attempts were, as shares of the call's time", () => {
  const bars = barsOf(call({
    fate: Fate.ATTEMPTS_EXHAUSTED,
    latency: ms(100),
    sends: 3,
    attempts: [
      { sentAfter: ms(0), took: ms(25), code: Code.UNAVAILABLE, detail: "not connected" },
      { sentAfter: ms(50), took: ms(50), code: Code.DEADLINE_EXCEEDED },
      { sentAfter: ms(75), hedge: true, code: Code.CANCELLED },
    ],
  }));
  expect(bars.map(({ from, length, kind, open }) => [from, length, kind, open])).toEqual([
    [0, 25, "send", false],
    [50, 50, "send", false],
    [75, 25, "hedge", true],
  ]);
  expect(bars.map(({ words }) => words)).toEqual(["UNAVAILABLE after 25 ms", "DEADLINE_EXCEEDED after 50 ms", "no answer before the call ended"]);
});

test("missing and impossible times draw no bar outside the lane", () => {
  const attempts = [{ sentAfter: ms(0), took: ms(0) }, { sentAfter: ms(500), took: ms(400) }, {}];
  for (const latency of [undefined, ms(0), ms(100)]) {
    for (const { from, length } of barsOf(call({ attempts, ...(latency ? { latency } : {}) }))) {
      expect(from).toBeGreaterThanOrEqual(0);
      expect(from + length).toBeLessThanOrEqual(100);
    }
  }
  expect(barsOf(call({ attempts: [{ sentAfter: ms(0), took: ms(0) }] }))).toMatchObject([{ from: 0, length: 0 }]);
});

test("a row keeps its id whatever comes before it, and alike calls have ids of their own", () => {
  const failure = (seconds: bigint, instance = "a b") => create(RouteFailureSchema, { client: { instance }, call: { endedAt: { seconds } } });
  const first = rowsOf([failure(1n)]).map(({ id }) => id);
  const later = rowsOf([failure(2n), failure(1n, "c"), failure(1n), failure(1n)]).map(({ id }) => id);
  expect(later[2]).toBe(first[0]);
  expect(new Set(later).size).toBe(4);
  expect(later.join("")).not.toMatch(/\s/);
});

test("ages and times allow for two different clocks", () => {
  expect(ago({ seconds: 100n, nanos: 0, $typeName: "google.protobuf.Timestamp" }, { seconds: 175n, nanos: 0, $typeName: "google.protobuf.Timestamp" })).toBe("1 min 15 s ago");
  const at = call({ endedAt: { seconds: 1_767_225_600n, nanos: 5_000_000 } }).endedAt;
  expect(ago(at, call({ endedAt: { seconds: 5n } }).endedAt)).toBe("0 s ago");
  expect(exactly(at)).toMatch(/:00\.005/);
  expect(exactly(call({ endedAt: { seconds: 99_999_999_999_999n } }).endedAt)).toBe("99999999999999 s since 1970");
  expect(exactly(undefined)).toBe("–");
  expect(codeName(99 as Code)).toBe("code 99");
});

test("a list stands still while it is read, counts what comes, and goes on afterwards", () => {
  const row = (id: string) => ({ id });
  const ids = () => reading.shown.map(({ id }) => id).join("");
  const reading = new Reading<{ id: string }>();
  reading.take([row("a")]);
  reading.toggle("a");
  reading.take([row("b"), row("a")]);
  reading.take([row("c"), row("b")]);
  expect([ids(), reading.waiting]).toEqual(["a", 2]);
  reading.catchUp();
  // The open row is gone, so the list continues.
  expect([ids(), reading.waiting, reading.reads]).toEqual(["cb", 0, false]);
  reading.hovered = true;
  reading.take([row("d"), row("c")]);
  expect(ids()).toBe("cb");
  reading.catchUp();
  expect(ids()).toBe("dc");
  reading.hovered = false;
  reading.take([row("e")]);
  expect(ids()).toBe("e");
});
