// Rates from counters.
import { expect, test } from "vitest";
import { Counted, UNKNOWN } from "./rates";

const counters = (submitted: number, done: number, failed = 0) => ({ submitted: BigInt(submitted), done: BigInt(done), failed: BigInt(failed) });

test("rates are averages over the last ten seconds", () => {
  const counted = new Counted();
  expect(counted.add(counters(0, 0), 0)).toEqual(UNKNOWN);
  expect(counted.add(counters(20, 10, 4), 2_000)).toEqual({ inPerS: 10, donePerS: 5, failedPerS: 2 });
  for (let s = 4; s <= 12; s += 2) counted.add(counters(20, 10, 4), s * 1_000);
  expect(counted.add(counters(20, 10, 4), 14_000)).toEqual({ inPerS: 0, donePerS: 0, failedPerS: 0 });
});

test("after a restart of the server rates begin again", () => {
  const counted = new Counted();
  counted.add(counters(1_000, 900), 0);
  expect(counted.add(counters(3, 3), 1_000)).toEqual(UNKNOWN);
  expect(counted.add(counters(5, 3), 2_000)).toEqual({ inPerS: 2, donePerS: 0, failedPerS: 0 });
});

test("a tab that slept averages over the whole gap", () => {
  const counted = new Counted();
  counted.add(counters(0, 0), 0);
  expect(counted.add(counters(600, 60), 60_000)).toEqual({ inPerS: 10, donePerS: 1, failedPerS: 0 });
});
