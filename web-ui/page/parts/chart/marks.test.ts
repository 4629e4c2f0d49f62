import { expect, test } from "vitest";
import { place } from "./marks";
import type { Mark } from "./marks";

const mark = (at: number, href = `/history?rev=${at}`): Mark => ({ at, sign: "◆", words: `at ${at}`, href });

test("a mark stands at its share of the window, and outside of it nowhere", () => {
  expect(place([mark(900), mark(1_000), mark(699), mark(1_001)], 1_000, 300).map(({ at, share }) => [at, Number(share.toFixed(3))]))
    .toEqual([[1_000, 1], [900, 0.667]]);
});

test("marks too near for a finger become one, which the newest leads", () => {
  const [first, second] = place([mark(990), mark(988), mark(986), mark(800)], 1_000, 300);
  expect(first).toMatchObject({ at: 990, count: 3, href: "/history?rev=990", words: "at 990; at 988; at 986" });
  expect(second).toMatchObject({ at: 800, count: 1 });
});
