// An edge of the chain with its routes and whether it is highlighted. Pure.
import type { Edge, GetChainResponse, RouteStats } from "$wire/fleet_pb";
import { hrefOf } from "../context/address.svelte";
import { keyText } from "../format/key";
import { isHigh } from "../format/numbers";
import { isFailing, roots } from "../statistics/failing";
import type { Flow, Root } from "../statistics/failing";
import type { Arc } from "./topology";

export interface GraphEdge extends Arc, Flow {
  // "caller callee". Names contain no spaces.
  readonly name: string;
  readonly edge: Edge;
  // Known routes between the two, by name.
  readonly routes: readonly RouteStats[];
  readonly high: boolean;
  readonly killed: boolean;
  // A high share of its calls fails; `atRoot`: no failure downstream explains it, so failures start at its
  // callee.
  readonly failing: boolean;
  readonly atRoot: boolean;
  // On the path with the highest amplification, as measured and as the rules allow.
  readonly onMeasured: boolean;
  readonly onPossible: boolean;
}

// The edges, and where failures start among them.
export interface Graph {
  readonly edges: readonly GraphEdge[];
  readonly roots: readonly Root<GraphEdge>[];
}

export function graphOf(answer: GetChainResponse, routes: Iterable<RouteStats>): Graph {
  const edges = edgesOf(answer, routes);
  const found = roots(edges);
  const starts = new Set(found.flatMap(({ at }) => at.map(({ name }) => name)));
  return { edges: edges.map((edge) => (starts.has(edge.name) ? { ...edge, atRoot: true } : edge)), roots: found };
}

function edgesOf(answer: GetChainResponse, routes: Iterable<RouteStats>): GraphEdge[] {
  const routesOf = new Map<string, RouteStats[]>();
  for (const route of routes) {
    const name = edgeName(route.key?.callerService ?? "", route.key?.calleeService ?? "");
    routesOf.set(name, [...(routesOf.get(name) ?? []), route]);
  }
  const measured = new Set(steps(answer.worstMeasured?.services ?? []));
  const possible = new Set((answer.worstPossible?.hops ?? []).map((hop) => edgeName(hop.callerService, hop.calleeService)));
  return answer.edges.map((edge) => {
    const [from, to] = [edge.callerService, edge.calleeService];
    const name = edgeName(from, to);
    const own = (routesOf.get(name) ?? []).sort((a, b) => (keyText(a.key) < keyText(b.key) ? -1 : 1));
    return {
      from, to, name, edge,
      callsPerS: edge.callsPerS,
      errorShare: edge.errorShare,
      routes: own,
      high: isHigh(edge.amplification),
      killed: own.some((route) => route.killed > 0),
      failing: isFailing(edge),
      atRoot: false,
      onMeasured: measured.has(name),
      onPossible: possible.has(name),
    };
  });
}

export function edgeName(from: string, to: string): string {
  return `${from} ${to}`;
}

// The edges of a path.
export function steps(path: readonly string[]): string[] {
  return path.slice(1).map((to, at) => edgeName(path[at] ?? "", to));
}

// The link of an edge: its route, or the filtered list if there are several.
export function edgeHref({ from, to, routes }: GraphEdge): string {
  const [only] = routes;
  if (only !== undefined && routes.length === 1) return hrefOf("/route", only.key);
  return `/?${new URLSearchParams({ q: `${from} ${to}` }).toString()}`;
}

// Key of the drawing: changes only when edges appear or disappear.
export function shapeOf(edges: readonly GraphEdge[]): string {
  return edges.map(({ name }) => name).sort().join("\n");
}

// Larger pictures are not readable.
export const MOST_SERVICES = 120;
export const MOST_EDGES = 360;

// The edges to draw. Of a large graph: where failures start, the paths with the highest amplification, then
// the most retries.
export function drawable(edges: readonly GraphEdge[]): readonly GraphEdge[] {
  const services = new Set(edges.flatMap(({ from, to }) => [from, to]));
  if (services.size <= MOST_SERVICES && edges.length <= MOST_EDGES) return edges;
  const rank = (edge: GraphEdge) => (edge.atRoot ? 2 : edge.onMeasured || edge.onPossible ? 1 : 0);
  const first = [...edges].sort((a, b) => rank(b) - rank(a) || b.edge.attemptsPerS - b.edge.callsPerS - (a.edge.attemptsPerS - a.edge.callsPerS)
    || (a.name < b.name ? -1 : 1));
  const drawn: GraphEdge[] = [];
  const named = new Set<string>();
  for (const edge of first) {
    named.add(edge.from).add(edge.to);
    if (named.size > MOST_SERVICES / 2) break;
    drawn.push(edge);
  }
  return drawn;
}
