// The call graph: its cycles, the edges that are drawn backwards, and the layer of each service.
//
// Pure, and in the order of names at every choice: the same edges give the same picture on every machine and
// after every poll. Statistics do not matter.

// From the caller to the callee.
export interface Arc {
  readonly from: string;
  readonly to: string;
}

const byName = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0);

export function services(arcs: readonly Arc[]): string[] {
  return [...new Set(arcs.flatMap(({ from, to }) => [from, to]))].sort(byName);
}

// The callees of each service, by name.
function leaving(arcs: readonly Arc[]): Map<string, string[]> {
  const callees = new Map(services(arcs).map((name): [string, string[]] => [name, []]));
  for (const { from, to } of arcs) callees.get(from)?.push(to);
  for (const names of callees.values()) names.sort(byName);
  return callees;
}

// A shortest cycle through each service that is on one. A cycle starts at its first name, is listed once and
// does not repeat that name at its end.
export function circles(arcs: readonly Arc[]): string[][] {
  const core = withoutEnds(arcs);
  const callees = leaving(core);
  const found: string[][] = [];
  const named = new Set<string>();
  for (const name of callees.keys()) {
    const circle = named.has(name) ? undefined : shortestCircle(name, callees);
    if (circle === undefined) continue;
    circle.forEach((each) => named.add(each));
    found.push(circle);
  }
  return found;
}

// Services without callers or without callees are on no cycle.
function withoutEnds(arcs: readonly Arc[]): readonly Arc[] {
  for (;;) {
    const callers = new Set(arcs.map(({ from }) => from));
    const callees = new Set(arcs.map(({ to }) => to));
    const kept = arcs.filter(({ from, to }) => callees.has(from) && callers.has(to));
    if (kept.length === arcs.length) return kept;
    arcs = kept;
  }
}

function shortestCircle(start: string, callees: ReadonlyMap<string, readonly string[]>): string[] | undefined {
  const cameFrom = new Map<string, string>();
  const open = [start];
  for (let at = open.shift(); at !== undefined; at = open.shift()) {
    for (const next of callees.get(at) ?? []) {
      if (next === start) return wayTo(at, start, cameFrom);
      if (cameFrom.has(next)) continue;
      cameFrom.set(next, at);
      open.push(next);
    }
  }
  return undefined;
}

function wayTo(end: string, start: string, cameFrom: ReadonlyMap<string, string>): string[] {
  const way = [end];
  for (let at: string | undefined = end; at !== undefined && at !== start;) {
    at = cameFrom.get(at);
    if (at !== undefined) way.unshift(at);
  }
  return way;
}

// The arcs that close a cycle, seen from the services where requests enter. Calls of a service to itself are
// not among them.
export function backward(arcs: readonly Arc[]): Set<Arc> {
  const between = arcs.filter(({ from, to }) => from !== to);
  const called = new Set(between.map(({ to }) => to));
  const names = services(arcs);
  const starts = [...names.filter((name) => !called.has(name)), ...names];
  const leavingArcs = new Map(names.map((name): [string, Arc[]] => [name, []]));
  for (const arc of [...between].sort((a, b) => byName(a.to, b.to))) leavingArcs.get(arc.from)?.push(arc);
  const state = new Map<string, "open" | "done">();
  const turned = new Set<Arc>();
  const visit = (name: string) => {
    state.set(name, "open");
    for (const arc of leavingArcs.get(name) ?? []) {
      const there = state.get(arc.to);
      if (there === "open") turned.add(arc);
      else if (there === undefined) visit(arc.to);
    }
    state.set(name, "done");
  };
  for (const name of starts) if (!state.has(name)) visit(name);
  return turned;
}

// The layer of each service: right of all its callers. A service without callers stands directly before its
// first callee, so that lines stay short.
export function layers(arcs: readonly Arc[]): Map<string, number> {
  const turned = backward(arcs);
  const forward = arcs
    .filter(({ from, to }) => from !== to)
    .map((arc) => (turned.has(arc) ? { from: arc.to, to: arc.from } : arc));
  const names = services(arcs);
  const at = new Map(names.map((name): [string, number] => [name, 0]));
  const layer = (name: string) => at.get(name) ?? 0;
  // At most as many rounds as the longest path has steps.
  for (let moved = true; moved;) {
    moved = false;
    for (const { from, to } of forward) {
      if (layer(to) > layer(from)) continue;
      at.set(to, layer(from) + 1);
      moved = true;
    }
  }
  const called = new Set(forward.map(({ to }) => to));
  for (const name of names.filter((each) => !called.has(each))) {
    const callees = forward.filter(({ from }) => from === name).map(({ to }) => layer(to));
    if (callees.length > 0) at.set(name, Math.min(...callees) - 1);
  }
  return at;
}
