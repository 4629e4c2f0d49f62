// Failing routes, and the services where failures start. Pure.
//
// In a -> b -> c, a failing c makes the calls from a to b fail too. The failures of a service are explained
// by its callees if its own failed calls are at least EXPLAINS of the failed calls to it. They are attributed
// to each callee with at least CARRIES of them. Following these callees ends at services whose failures no
// callee explains: failures start there. Services that explain each other in a cycle count as one place.
//
// The comparison uses rates, not single requests: a service that fails by itself as much as its callees is
// attributed to them. Services without reports and without known callers cannot be named.

// A route with this share and rate of failures is shown even without retries.
export const FAILING_SHARE = 0.1;
const FAILING_CALLS_PER_S = 0.2;
// Callers may answer without a failed callee, and may count a request with several calls once.
const EXPLAINS = 0.5;
// Several callees can share the cause; smaller shares are noise.
const CARRIES = 0.25;

// Calls from one service to another.
export interface Flow {
  readonly from: string;
  readonly to: string;
  readonly callsPerS: number;
  // Failed calls / calls.
  readonly errorShare: number;
}

export interface Root<Of extends Flow> {
  // One service, or those of a cycle, by name.
  readonly services: readonly string[];
  // Flows that fail there, and flows that fail as a result; the most failed calls first.
  readonly at: readonly Of[];
  readonly above: readonly Of[];
}

export function isFailing({ callsPerS, errorShare }: Pick<Flow, "callsPerS" | "errorShare">): boolean {
  return errorShare >= FAILING_SHARE && callsPerS >= FAILING_CALLS_PER_S;
}

export function failedPerS({ callsPerS, errorShare }: Pick<Flow, "callsPerS" | "errorShare">): number {
  return callsPerS * errorShare;
}

// The places with the most failed calls first.
export function roots<Of extends Flow>(flows: readonly Of[]): Root<Of>[] {
  const failing = flows.filter(isFailing).sort((a, b) => failedPerS(b) - failedPerS(a));
  if (failing.length === 0) return [];
  const startsOf = starts(explaining(flows));
  const found = new Map<string, { services: readonly string[]; at: Of[]; above: Of[] }>();
  for (const flow of failing) {
    for (const services of startsOf(flow.to)) {
      const place = services.join(" ");
      const root = found.get(place) ?? { services, at: [], above: [] };
      (services.includes(flow.to) ? root.at : root.above).push(flow);
      found.set(place, root);
    }
  }
  const weight = ({ at, above }: Root<Of>) => [...at, ...above].reduce((sum, flow) => sum + failedPerS(flow), 0);
  return [...found.values()].sort((a, b) => weight(b) - weight(a));
}

// The callees of each service that explain its failures.
function explaining(flows: readonly Flow[]): Map<string, string[]> {
  const arriving = new Map<string, number>();
  const between = new Map<string, Map<string, number>>();
  for (const flow of flows) {
    const failed = failedPerS(flow);
    if (failed === 0 || flow.from === flow.to) continue;
    arriving.set(flow.to, (arriving.get(flow.to) ?? 0) + failed);
    const callees = between.get(flow.from) ?? new Map<string, number>();
    between.set(flow.from, callees.set(flow.to, (callees.get(flow.to) ?? 0) + failed));
  }
  return new Map([...between].map(([from, callees]) => {
    const all = [...callees.values()].reduce((sum, failed) => sum + failed, 0);
    const explains = all >= (arriving.get(from) ?? Infinity) * EXPLAINS;
    return [from, explains ? [...callees].flatMap(([to, failed]) => (failed >= all * CARRIES ? [to] : [])) : []];
  }));
}

// The places where the failures of a service start.
function starts(next: ReadonlyMap<string, readonly string[]>): (service: string) => readonly (readonly string[])[] {
  const below = remembered((from: string): ReadonlySet<string> => {
    const reached = new Set([from]);
    // Iteration over a set includes values that are added meanwhile; each service is followed once.
    for (const name of reached) for (const to of next.get(name) ?? []) reached.add(to);
    return reached;
  });
  // Reachability is transitive, so equal sizes mean that the services reach each other.
  const isEnd = remembered((name: string) => [...below(name)].every((other) => below(other).size === below(name).size));
  return remembered((service: string) => {
    const places: (readonly string[])[] = [];
    const placed = new Set<string>();
    for (const name of below(service)) {
      if (placed.has(name) || !isEnd(name)) continue;
      const place = [...below(name)].sort();
      place.forEach((each) => placed.add(each));
      places.push(place);
    }
    return places;
  });
}

function remembered<Value>(find: (name: string) => Value): (name: string) => Value {
  const known = new Map<string, Value>();
  return (name) => {
    const value = known.has(name) ? (known.get(name) as Value) : find(name);
    known.set(name, value);
    return value;
  };
}
