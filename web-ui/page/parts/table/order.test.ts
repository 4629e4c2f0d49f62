import { expect, test } from "vitest";
import { held, matches, nextSort, page, sorted } from "./order";

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
