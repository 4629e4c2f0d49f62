// The service that an arrow key selects: along the calls, or the neighbour in the layer. Pure.
import type { Direction, Layout, Placed } from "./layout";

const STEPS: Record<Direction, Record<string, "callee" | "caller" | "next" | "previous">> = {
  right: { ArrowRight: "callee", ArrowLeft: "caller", ArrowDown: "next", ArrowUp: "previous" },
  down: { ArrowDown: "callee", ArrowUp: "caller", ArrowRight: "next", ArrowLeft: "previous" },
};

// Undefined = no service in this direction.
export function neighbour({ nodes, lines }: Layout, direction: Direction, from: string, key: string): string | undefined {
  const here = nodes.find(({ name }) => name === from);
  const step = STEPS[direction][key];
  if (key === "Home") return nodes[0]?.name;
  if (key === "End") return nodes.at(-1)?.name;
  if (here === undefined || step === undefined) return undefined;
  if (step === "next" || step === "previous") {
    const row = here.row + (step === "next" ? 1 : -1);
    return nodes.find((node) => node.layer === here.layer && node.row === row)?.name;
  }
  const names = new Set(
    lines
      .filter(({ arc, backward }) => !backward && (step === "callee" ? arc.from : arc.to) === from)
      .map(({ arc }) => (step === "callee" ? arc.to : arc.from)),
  );
  const across = (node: Placed) => Math.abs(node.x - here.x) + Math.abs(node.y - here.y);
  return nodes.filter(({ name }) => names.has(name)).sort((a, b) => across(a) - across(b))[0]?.name;
}
