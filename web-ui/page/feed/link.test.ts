import { expect, test } from "vitest";
import { waitMs } from "./link";

test("waits double from a quarter of a second to eight and are half chance", () => {
  expect([1, 2, 6, 50].map((failures) => waitMs(failures, 1))).toEqual([250, 500, 8000, 8000]);
  expect(waitMs(1, 0)).toBe(125);
});
