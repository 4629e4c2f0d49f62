import { expect, test, vi } from "vitest";
import { SHOWN } from "../../screenshots/pages";

// A canvas is nothing that this test has.
vi.mock("uplot", () => ({ default: class { destroy() {} } }));
const { DETAILS, PAGES } = await import("./pages");

test("pictures are taken of every page, each under a name of its own", () => {
  const taken = new Set(SHOWN.map(({ path }) => new URL(path, "http://page").pathname));
  for (const { path } of [...PAGES, ...DETAILS]) expect(taken).toContain(path);
  expect(new Set(SHOWN.map(({ name }) => name)).size).toBe(SHOWN.length);
});
