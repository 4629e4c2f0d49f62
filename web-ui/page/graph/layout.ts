// Positions of services and lines: layers from left to right (downwards on a narrow screen), few crossings,
// lines as straight as the order allows.
//
// After Sugiyama, Tagawa and Toda (1981): cycles are opened (topology.ts); a line over several layers gets a
// place in each of them; places are ordered by the mean of their neighbours until crossings no longer fall,
// and then moved towards their neighbours without overlap: the least-squares solution under fixed order and
// distance, by pooling adjacent violators. Pure; the same edges give the same picture.
import { backward, layers, services } from "./topology";
import type { Arc } from "./topology";

export type Direction = "right" | "down";

export interface Point {
  readonly x: number;
  readonly y: number;
}

export interface Box extends Point {
  readonly width: number;
  readonly height: number;
}

export interface Placed extends Box {
  readonly name: string;
  readonly layer: number;
  // From the top of its layer (from the left where layers run downwards), services only.
  readonly row: number;
}

export interface Line<A extends Arc = Arc> {
  readonly arc: A;
  // It closes a cycle and runs against the others.
  readonly backward: boolean;
  // Of an SVG path.
  readonly path: string;
  // The tip of the arrow at the callee.
  readonly head: string;
  // Along the line, from the caller to the callee.
  readonly points: readonly Point[];
}

export interface Layout<A extends Arc = Arc> {
  readonly width: number;
  readonly height: number;
  // By layer and row.
  readonly nodes: readonly Placed[];
  // In the order of the arcs given.
  readonly lines: readonly Line<A>[];
}

export const NODE = { width: 148, height: 40 } as const;
// Room for a label between layers and for a line next to nodes.
const GAP = { right: { main: 144, cross: 18 }, down: { main: 64, cross: 16 } } as const;
// A line that passes through a layer needs less room than a service.
const LANE = 12;
const MARGIN = 26;
const SWEEPS = 16;
const SETTLING = 12;
const PORT_STEP = 9;
const ARROW = 8;

// A service, or the place of a line in a layer that it passes through.
interface Place {
  readonly name: string | undefined;
  readonly layer: number;
  readonly before: Place[];
  readonly behind: Place[];
  order: number;
  cross: number;
}

// The places of an arc from the left to the right.
interface Way<A> {
  readonly arc: A;
  readonly backward: boolean;
  readonly places: Place[];
}

export function layout<A extends Arc>(arcs: readonly A[], direction: Direction = "right"): Layout<A> {
  if (arcs.length === 0) return { width: 0, height: 0, nodes: [], lines: [] };
  const { rows, ways } = placed([...arcs].sort((a, b) => compare(a.from, b.from) || compare(a.to, b.to)));
  order(rows);
  const sizes = direction === "right" ? [NODE.width, NODE.height] : [NODE.height, NODE.width];
  const [main = 0, cross = 0] = sizes;
  const gap = GAP[direction];
  settle(rows, (place) => (place.name === undefined ? LANE : cross), gap.cross);
  const low = Math.min(...rows.flat().map((place) => place.cross - sizeOf(place, cross) / 2));
  for (const place of rows.flat()) place.cross += MARGIN - low;
  const pen = new Pen(direction, main, cross, gap.main);
  const nodes = rows.flatMap((row) =>
    row.filter(({ name }) => name !== undefined).map((place, at) => pen.node(place, at)),
  );
  const ports = portsOf(ways, cross);
  const wayOf = new Map(ways.map((way) => [way.arc, way]));
  const lines = arcs.map((arc) => {
    const way = wayOf.get(arc);
    const loop = nodes.find(({ name }) => name === arc.from);
    return way === undefined ? loopLine(arc, loop) : pen.line(way, ports);
  });
  const end = Math.max(0, ...rows.flat().map((place) => place.cross + sizeOf(place, cross) / 2)) + MARGIN;
  const length = rows.length * (main + gap.main) - gap.main + 2 * MARGIN;
  return { width: direction === "right" ? length : end, height: direction === "right" ? end : length, nodes, lines };
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

function sizeOf(place: Place, cross: number): number {
  return place.name === undefined ? LANE : cross;
}

// Every service and every line in its layers, in an order to begin with: as they are met from the left.
function placed<A extends Arc>(arcs: readonly A[]): { rows: Place[][]; ways: Way<A>[] } {
  const at = layers(arcs);
  const turned: ReadonlySet<Arc> = backward(arcs);
  const first = Math.min(...at.values(), 0);
  const rows: Place[][] = [];
  const stand = (name: string | undefined, layer: number): Place => ({ name, layer, before: [], behind: [], order: 0, cross: 0 });
  const nodes = new Map(services(arcs).map((name) => [name, stand(name, (at.get(name) ?? 0) - first)]));
  const ways: Way<A>[] = [];
  for (const arc of arcs.filter(({ from, to }) => from !== to)) {
    const isBackward = turned.has(arc);
    const left = nodes.get(isBackward ? arc.to : arc.from);
    const right = nodes.get(isBackward ? arc.from : arc.to);
    if (left === undefined || right === undefined) continue;
    const places = [left];
    for (let layer = left.layer + 1; layer < right.layer; layer += 1) places.push(stand(undefined, layer));
    places.push(right);
    places.slice(1).forEach((place, before) => {
      const neighbour = places[before];
      if (neighbour === undefined) return;
      place.before.push(neighbour);
      neighbour.behind.push(place);
    });
    ways.push({ arc, backward: isBackward, places });
  }
  const met = new Set<Place>();
  const meet = (place: Place) => {
    if (met.has(place)) return;
    met.add(place);
    (rows[place.layer] ??= []).push(place);
    place.behind.forEach(meet);
  };
  [...nodes.values()].filter(({ before }) => before.length === 0).forEach(meet);
  const filled = Array.from(rows, (row) => row ?? []);
  filled.forEach(number);
  return { rows: filled, ways };
}

function number(row: Place[]): void {
  row.forEach((place, at) => { place.order = at; });
}

// Sweeps to and fro; the order with the fewest crossings stays.
function order(rows: Place[][]): void {
  let best = rows.map((row) => [...row]);
  let fewest = crossings(rows);
  for (let sweep = 0; sweep < SWEEPS && fewest > 0; sweep += 1) {
    const toRight = sweep % 2 === 0;
    for (const row of toRight ? rows : [...rows].reverse()) {
      const mean = new Map(row.map((place) => [place, middle(toRight ? place.before : place.behind) ?? place.order]));
      row.sort((a, b) => (mean.get(a) ?? 0) - (mean.get(b) ?? 0) || a.order - b.order);
      number(row);
      swapNeighbours(row);
    }
    const now = crossings(rows);
    if (now >= fewest) continue;
    fewest = now;
    best = rows.map((row) => [...row]);
  }
  best.forEach((row, layer) => {
    rows[layer] = row;
    number(row);
  });
}

function middle(neighbours: readonly Place[]): number | undefined {
  if (neighbours.length === 0) return undefined;
  return neighbours.reduce((sum, place) => sum + place.order, 0) / neighbours.length;
}

function swapNeighbours(row: Place[]): void {
  for (let at = 0; at + 1 < row.length; at += 1) {
    const [a, b] = [row[at], row[at + 1]];
    if (a === undefined || b === undefined) continue;
    const count = (first: Place, second: Place) =>
      crossed(first.before, second.before) + crossed(first.behind, second.behind);
    if (count(b, a) >= count(a, b)) continue;
    row[at] = b;
    row[at + 1] = a;
    [a.order, b.order] = [b.order, a.order];
  }
}

// How many lines of the first cross lines of the second, where the first stands before it.
function crossed(first: readonly Place[], second: readonly Place[]): number {
  let sum = 0;
  for (const a of first) for (const b of second) if (a.order > b.order) sum += 1;
  return sum;
}

function crossings(rows: readonly Place[][]): number {
  let sum = 0;
  for (const row of rows) {
    row.forEach((first, at) => {
      for (const second of row.slice(at + 1)) sum += crossed(first.behind, second.behind);
    });
  }
  return sum;
}

// Moves places towards their neighbours; order and distance hold.
function settle(rows: readonly Place[][], size: (place: Place) => number, gap: number): void {
  const apart = (a: Place, b: Place) =>
    (size(a) + size(b)) / 2 + (a.name === undefined && b.name === undefined ? 0 : gap);
  for (const row of rows) {
    row.forEach((place, at) => {
      const before = row[at - 1];
      place.cross = before === undefined ? 0 : before.cross + apart(before, place);
    });
  }
  for (let pass = 0; pass < SETTLING; pass += 1) {
    const toRight = pass % 2 === 0;
    for (const row of toRight ? rows : [...rows].reverse()) {
      const wanted = row.map((place) => {
        // The last passes look both ways.
        const near = pass >= SETTLING - 2 ? [...place.before, ...place.behind] : toRight ? place.before : place.behind;
        return near.length === 0 ? place.cross : near.reduce((sum, { cross }) => sum + cross, 0) / near.length;
      });
      // A bent line is worse than a service out of its middle.
      const weights = row.map((place) => (place.name === undefined ? 4 : 1));
      const gaps = row.slice(1).map((place, at) => apart(row[at] ?? place, place));
      spread(wanted, weights, gaps).forEach((cross, at) => {
        const place = row[at];
        if (place !== undefined) place.cross = cross;
      });
    }
  }
}

// The values nearest to the wanted ones (by squares) that keep the order and the gaps.
export function spread(wanted: readonly number[], weights: readonly number[], gaps: readonly number[]): number[] {
  let offset = 0;
  const offsets = wanted.map((_, at) => (offset += at === 0 ? 0 : (gaps[at - 1] ?? 0)));
  const blocks: { value: number; weight: number; count: number }[] = [];
  wanted.forEach((value, at) => {
    let block = { value: value - (offsets[at] ?? 0), weight: weights[at] ?? 1, count: 1 };
    for (let last = blocks.at(-1); last !== undefined && last.value >= block.value; last = blocks.at(-1)) {
      const weight = last.weight + block.weight;
      block = {
        value: (last.value * last.weight + block.value * block.weight) / weight,
        weight,
        count: last.count + block.count,
      };
      blocks.pop();
    }
    blocks.push(block);
  });
  return blocks.flatMap(({ value, count }) => Array<number>(count).fill(value)).map((value, at) => value + (offsets[at] ?? 0));
}

type Ports = ReadonlyMap<Way<Arc>, { readonly left: number; readonly right: number }>;

// Lines that meet at one side of a service end next to each other, in the order of their origins.
function portsOf(ways: readonly Way<Arc>[], cross: number): Ports {
  const sides = new Map<Place, { left: Way<Arc>[]; right: Way<Arc>[] }>();
  const side = (place: Place) => {
    const there = sides.get(place) ?? { left: [], right: [] };
    sides.set(place, there);
    return there;
  };
  for (const way of ways) {
    const [first, last] = [way.places[0], way.places.at(-1)];
    if (first) side(first).right.push(way);
    if (last) side(last).left.push(way);
  }
  const ports = new Map(ways.map((way) => [way, { left: 0, right: 0 }]));
  const share = (at: Way<Arc>[], next: (way: Way<Arc>) => Place | undefined, of: "left" | "right") => {
    const sorted = [...at].sort((a, b) => (next(a)?.cross ?? 0) - (next(b)?.cross ?? 0) || Number(a.backward) - Number(b.backward));
    const step = Math.min(PORT_STEP, (cross - 14) / Math.max(sorted.length - 1, 1));
    sorted.forEach((way, number) => {
      const port = ports.get(way);
      if (port) port[of] = (number - (sorted.length - 1) / 2) * step;
    });
  };
  for (const { left, right } of sides.values()) {
    share(right, (way) => way.places[1], "left");
    share(left, (way) => way.places.at(-2), "right");
  }
  return ports;
}

// Turns layer and cross into x and y.
class Pen {
  readonly #direction: Direction;
  readonly #main: number;
  readonly #cross: number;
  readonly #gap: number;

  constructor(direction: Direction, main: number, cross: number, gap: number) {
    this.#direction = direction;
    this.#main = main;
    this.#cross = cross;
    this.#gap = gap;
  }

  node(place: Place, row: number): Placed {
    const corner = this.#point(this.#begin(place), place.cross - this.#cross / 2);
    return { ...corner, width: NODE.width, height: NODE.height, name: place.name ?? "", layer: place.layer, row };
  }

  line<A extends Arc>(way: Way<A>, ports: Ports): Line<A> {
    const port = ports.get(way) ?? { left: 0, right: 0 };
    // Pairs of main and cross, two per place: where the line enters and leaves it.
    let stops = way.places.flatMap((place, at): [number, number][] => {
      const isFirst = at === 0;
      const isLast = at === way.places.length - 1;
      const begin: [number, number] = [this.#begin(place), place.cross + (isLast ? port.right : 0)];
      const end: [number, number] = [this.#begin(place) + this.#main, place.cross + (isFirst ? port.left : 0)];
      return isFirst ? [end] : isLast ? [begin] : [begin, end];
    });
    if (way.backward) stops = stops.reverse();
    const sign = way.backward ? -1 : 1;
    const tip = stops.at(-1) ?? [0, 0];
    stops[stops.length - 1] = [tip[0] - sign * ARROW, tip[1]];
    return { arc: way.arc, backward: way.backward, ...this.#drawn(stops), head: this.#head(tip, sign) };
  }

  #begin(place: Place): number {
    return MARGIN + place.layer * (this.#main + this.#gap);
  }

  #point(main: number, cross: number): Point {
    return this.#direction === "right" ? { x: main, y: cross } : { x: cross, y: main };
  }

  #text(main: number, cross: number): string {
    const { x, y } = this.#point(main, cross);
    return `${round(x)} ${round(y)}`;
  }

  #drawn(stops: readonly [number, number][]): { path: string; points: Point[] } {
    const [begin = [0, 0] as const, ...rest] = stops;
    let path = `M${this.#text(...begin)}`;
    const points: Point[] = [];
    let from: readonly [number, number] = begin;
    rest.forEach((to, at) => {
      const half = (from[0] + to[0]) / 2;
      // Every second step leads through a layer, along a lane.
      path += at % 2 === 1 ? `L${this.#text(...to)}` : `C${this.#text(half, from[1])} ${this.#text(half, to[1])} ${this.#text(...to)}`;
      for (let step = 0; step <= 12; step += 1) {
        const t = step / 12;
        const ease = at % 2 === 1 ? t : 3 * t * t - 2 * t * t * t;
        // Of the cubic's main part, whose inner points both lie at the half.
        const along = at % 2 === 1 ? t : 1.5 * t * (1 - t) + t * t * t;
        points.push(this.#point(from[0] + (to[0] - from[0]) * along, from[1] + (to[1] - from[1]) * ease));
      }
      from = to;
    });
    return { path, points };
  }

  #head([main, cross]: readonly [number, number], sign: number): string {
    const back = main - sign * ARROW;
    return `M${this.#text(main, cross)}L${this.#text(back, cross - 4.5)}L${this.#text(back, cross + 4.5)}Z`;
  }
}

// A service that calls itself: a loop above its right corner.
function loopLine<A extends Arc>(arc: A, node: Placed | undefined): Line<A> {
  const { x, y, width } = node ?? { x: 0, y: 0, width: NODE.width };
  const [left, right, top] = [x + width - 44, x + width - 14, y - 20];
  const path = `M${round(right)} ${round(y)}C${round(right + 6)} ${round(top)} ${round(left - 6)} ${round(top)} ${round(left)} ${round(y - 6)}`;
  const head = `M${round(left)} ${round(y)}L${round(left - 4.5)} ${round(y - ARROW)}L${round(left + 4.5)} ${round(y - ARROW)}Z`;
  const points = [{ x: right, y }, { x: (left + right) / 2, y: y - 15 }, { x: left, y: y - 6 }];
  return { arc, backward: true, path, head, points };
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
