import { expect, test } from "vitest";
import { isHigh, rate, share, some, times, timesWithin, whole } from "./numbers";

test.each([[0, "0.0"], [0.02, "0.02"], [9.96, "10.0"], [99.94, "99.9"], [1234.4, "1,234"]])("rate %d is %s", (perS, words) => {
  expect(rate(perS)).toBe(words);
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
