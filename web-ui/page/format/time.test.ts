import { create } from "@bufbuild/protobuf";
import { TimestampSchema } from "@bufbuild/protobuf/wkt";
import { expect, test } from "vitest";
import { age, clock, span } from "./time";

test("a clock has two digits at every hour", () => {
  const early = new Date(2026, 10, 22, 3, 7, 5).getTime() / 1000;
  expect(clock(create(TimestampSchema, { seconds: BigInt(early) }))).toMatch(/^03:07:05 \S+$/);
});

test.each([
  [{ seconds: 0n, nanos: 850_000 }, "850 µs"],
  [{ seconds: 0n, nanos: 25_000_000 }, "25 ms"],
  [{ seconds: 1n, nanos: 500_000_000 }, "1.5 s"],
  [{ seconds: 86_400n, nanos: 0 }, "24 h"],
])("a duration is short", (duration, words) => {
  expect(span({ $typeName: "google.protobuf.Duration", ...duration })).toBe(words);
});

test("ages have whole seconds, minutes and hours", () => {
  expect([900, 61_000, 3_700_000].map(age)).toEqual(["0 s", "1 min 1 s", "1 h 1 min"]);
});
