import { expect, test } from "vitest";
import { backward, circles, layers } from "./topology";
import type { Arc } from "./topology";
import { around, labels, overlap } from "./labels";
import { layout, spread } from "./layout";
import type { Layout } from "./layout";
import { manyServices } from "../testing/many_services";

const arcs = (text: string): Arc[] =>
  text.split(" ").map((each) => {
    const [from = "", to = ""] = each.split(">");
    return { from, to };
  });
const of = (count: number, seed?: number) =>
  manyServices(count, seed).edges.map(({ callerService: from, calleeService: to }) => ({ from, to }));
const SHOP = "gateway>orders orders>inventory inventory>stock";

function overlapping({ nodes }: Layout): string[] {
  return nodes.flatMap((a, at) => nodes.slice(at + 1).filter((b) => overlap(a, b)).map((b) => `${a.name} ${b.name}`));
}

test("a chain stands in one line, its callers left of its callees", () => {
  const { nodes, lines } = layout(arcs(SHOP));
  expect(nodes.map(({ name }) => name)).toEqual(["gateway", "orders", "inventory", "stock"]);
  expect(nodes.map(({ layer }) => layer)).toEqual([0, 1, 2, 3]);
  expect(new Set(nodes.map(({ y }) => y)).size).toBe(1);
  expect(lines.every((line) => !line.backward)).toBe(true);
});

test("downwards it is the same picture turned", () => {
  const { nodes, width, height } = layout(arcs(SHOP), "down");
  expect(new Set(nodes.map(({ x }) => x)).size).toBe(1);
  expect(nodes.map(({ y }) => y)).toEqual([...nodes.map(({ y }) => y)].sort((a, b) => a - b));
  expect(height).toBeGreaterThan(width);
  expect(width).toBeLessThanOrEqual(360);
});

test.each(["right", "down"] as const)("no service overlaps another, whatever the fleet, %s", (direction) => {
  for (let seed = 1; seed <= 40; seed += 1) {
    const drawn = layout(of(4 + seed * 2, seed), direction);
    expect(overlapping(drawn), `seed ${seed}`).toEqual([]);
    for (const { x, y, width, height } of drawn.nodes) {
      expect(x >= 0 && y >= 0 && x + width <= drawn.width && y + height <= drawn.height, `seed ${seed}`).toBe(true);
    }
  }
});

test("the order in which edges come changes nothing", () => {
  const edges = of(60);
  const places = (drawn: Layout) => drawn.nodes.map(({ name, x, y }) => `${name} ${x} ${y}`);
  expect(places(layout([...edges].reverse()))).toEqual(places(layout(edges)));
});

test("forward lines lead to the right and lines that close a circle to the left", () => {
  const { lines, nodes } = layout(arcs("a>b b>c c>a"));
  const x = (name: string) => nodes.find((node) => node.name === name)?.x ?? NaN;
  for (const { arc, backward: against } of lines) expect(x(arc.from) > x(arc.to)).toBe(against);
  expect(lines.filter((line) => line.backward).map(({ arc }) => `${arc.from}>${arc.to}`)).toEqual(["c>a"]);
});

test("a circle is opened where requests come back to where they came in", () => {
  const turned = [...backward(arcs("front>b b>c c>d d>b"))];
  expect(turned.map(({ from, to }) => `${from}>${to}`)).toEqual(["d>b"]);
});

test("two that call each other have two lines that do not lie on each other", () => {
  const { lines } = layout(arcs("a>b b>a"));
  const [there, back] = lines;
  expect(there?.points[0]?.y).not.toBe(back?.points.at(-1)?.y);
});

test("a service that calls itself has a loop, and is a circle", () => {
  const { lines, nodes } = layout(arcs("a>a"));
  expect(nodes).toHaveLength(1);
  expect(lines[0]?.path).toMatch(/^M[\d.]+ [\d.]+C/);
  expect(circles(arcs("a>a"))).toEqual([["a"]]);
});

test("circles are named from their first name on, each once", () => {
  expect(circles(arcs("a>b b>c c>a c>d d>e e>d x>a d>z"))).toEqual([["a", "b", "c"], ["d", "e"]]);
  expect(circles(arcs(SHOP))).toEqual([]);
});

test("a service stands right of its callers; without callers, before its callee", () => {
  const at = layers(arcs("gateway>orders gateway>stock orders>stock batch>stock"));
  expect(Object.fromEntries(at)).toEqual({ batch: 1, gateway: 0, orders: 1, stock: 2 });
});

test("a line over several layers keeps off the services between", () => {
  const drawn = layout(arcs("a>b b>c c>d a>d"));
  const long = drawn.lines[3];
  const between = drawn.nodes.filter(({ name }) => name === "b" || name === "c");
  expect(long?.points.some((point) => between.some((box) => overlap(box, around(point, { width: 1, height: 1 }))))).toBe(false);
});

test("places are spread by the least that keeps order and distance", () => {
  expect(spread([0, 0, 30], [1, 1, 1], [10, 10])).toEqual([-5, 5, 30]);
  expect(spread([5, 1], [3, 1], [2])).toEqual([3.5, 5.5]);
  expect(spread([], [], [])).toEqual([]);
});

test("words on a small chain's lines lie apart from each other and from services", () => {
  const size = { width: 84, height: 18 };
  const { lines, nodes } = layout(arcs(`${SHOP} gateway>inventory gateway>stock`));
  const boxes = labels(lines, nodes, size).map((point) => around(point, size));
  boxes.forEach((box, at) => {
    expect(nodes.some((node) => overlap(node, box))).toBe(false);
    expect(boxes.slice(at + 1).some((other) => overlap(other, box))).toBe(false);
  });
});

test.each(["right", "down"] as const)("words lie on no other line where there is room, %s", (direction) => {
  const size = { width: 40, height: 12 };
  const { lines, nodes } = layout(arcs("a>c a>d b>c b>d"), direction);
  const boxes = labels(lines, nodes, size).map((point) => around(point, size));
  boxes.forEach((box, at) => {
    const others = lines.filter((_, other) => other !== at).flatMap(({ points }) => points);
    expect(others.filter((point) => overlap(box, around(point, { width: 1, height: 1 })))).toEqual([]);
  });
});

test("nothing is drawn of nothing", () => {
  expect(layout([])).toEqual({ width: 0, height: 0, nodes: [], lines: [] });
});

test("sixty services are laid out within a frame of the screen", () => {
  const edges = of(60);
  layout(edges);
  const begun = performance.now();
  layout(edges);
  expect(performance.now() - begun).toBeLessThan(250);
});
