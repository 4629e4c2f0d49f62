import { expect, test } from "vitest";
import { isFailing, roots } from "./failing";

const flow = (name: string, callsPerS: number, errorShare: number) => {
  const [from = "", to = ""] = name.split(" ");
  return { from, to, name, callsPerS, errorShare };
};
const found = (...flows: ReturnType<typeof flow>[]) =>
  roots(flows).map(({ services, at, above }) => ({ services, at: at.map(({ name }) => name), above: above.map(({ name }) => name) }));

test("a route fails from a tenth of its calls on, if there are enough of them", () => {
  expect(isFailing({ callsPerS: 1, errorShare: 0.1 })).toBe(true);
  expect(isFailing({ callsPerS: 1, errorShare: 0.09 })).toBe(false);
  expect(isFailing({ callsPerS: 0.1, errorShare: 1 })).toBe(false);
});

test("in a chain failures start at the bottom, and what is above fails as a result", () => {
  expect(found(flow("web a", 40, 0.7), flow("a b", 40, 0.7), flow("b c", 80, 0.7))).toEqual([{ services: ["c"], at: ["b c"], above: ["web a", "a b"] }]);
});

test("nothing that fails has no root, and a single failing route is its own", () => {
  expect(found(flow("a b", 40, 0.01), flow("b c", 40, 0))).toEqual([]);
  expect(found(flow("a b", 40, 0.5), flow("b c", 40, 0))).toEqual([{ services: ["b"], at: ["a b"], above: [] }]);
});

test("a callee that fails too little to explain it is not blamed", () => {
  expect(found(flow("a b", 40, 0.5), flow("b c", 40, 0.11))).toMatchObject([{ services: ["b"], at: ["a b"] }, { services: ["c"], at: ["b c"], above: [] }]);
  expect(found(flow("a b", 40, 0.5), flow("b c", 40, 0.04))).toMatchObject([{ services: ["b"], above: [] }]);
});

test("a callee whose failures are the smaller part of what fails above is not blamed", () => {
  expect(found(flow("a b", 6, 0.5), flow("x b", 100, 0.03), flow("b c", 58, 0.04))).toMatchObject([{ services: ["b"], at: ["a b"] }]);
});

test("a callee is named although the share of its calls that fail is small, where it is called often enough to explain it", () => {
  expect(found(flow("a b", 10, 0.5), flow("b c", 200, 0.05))).toEqual([{ services: ["c"], at: [], above: ["a b"] }]);
});

test("failures of two callees have two roots, the one with more of them first", () => {
  expect(found(flow("a b", 40, 0.6), flow("b c", 40, 0.2), flow("b d", 40, 0.4))).toEqual([
    { services: ["d"], at: ["b d"], above: ["a b"] },
    { services: ["c"], at: ["b c"], above: ["a b"] },
  ]);
});

test("all callers of what fails are under it, and routes between the same two are seen together", () => {
  expect(found(flow("x c", 10, 0.5), flow("y c", 20, 0.5), flow("a y", 20, 0.5), { ...flow("y c", 5, 0.5), name: "y c again" })).toEqual([
    { services: ["c"], at: ["y c", "x c", "y c again"], above: ["a y"] },
  ]);
});

test("services that fail each other in a circle are one root, with what is above it", () => {
  expect(found(flow("web a", 10, 0.8), flow("a b", 10, 0.8), flow("b c", 10, 0.8), flow("c b", 10, 0.8))).toEqual([
    { services: ["b", "c"], at: ["a b", "b c", "c b"], above: ["web a"] },
  ]);
});

test("a way out of the circle is where it starts", () => {
  expect(found(flow("a b", 10, 0.8), flow("b a", 10, 0.8), flow("b c", 10, 0.8))).toEqual([{ services: ["c"], at: ["b c"], above: ["a b", "b a"] }]);
});

test("a service that calls itself ends no search", () => {
  expect(found(flow("a b", 10, 0.8), flow("b b", 10, 0.8))).toMatchObject([{ services: ["b"] }]);
});

test("five hundred services in a ring, all failing, are found at once", () => {
  const ring = Array.from({ length: 500 }, (_, at) => flow(`s${at} s${(at + 1) % 500}`, 10, 0.9));
  expect(found(...ring)).toMatchObject([{ services: { length: 500 }, above: [] }]);
});
