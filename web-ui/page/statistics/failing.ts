// What fails, and where failures start. Pure; stated here only.
//
// A service that fails because one that it calls fails shows its callers' routes as failing too: in a -> b -> c both
// look alike. What a service calls explains its failures, if at least EXPLAINS of the calls to it that fail are matched
// by as many failed calls that it makes itself; they are put down to each callee that has at least CARRIES of those.
// Followed down, that ends at the services whose failures nothing below explains: there they start. Services that
// explain each other in a circle are one such place.
//
// It goes by rates, not by requests: a service that fails by itself, and by chance as much as what it calls, is taken
// for one that suffers. What does not report, or is no known callers, can not be named.

// A route with this share of failures and this rate of calls is shown even without retries.
export const FAILING_SHARE = 0.1;
const FAILING_CALLS_PER_S = 0.2;
// Callers may have answers of their own to what fails below, and count a request of several calls once.
const EXPLAINS = 0.5;
// Several callees can share the cause; noise is no cause.
const CARRIES = 0.25;

// Calls from one service to another.
export interface Flow {
  readonly from: string;
  readonly to: string;
  readonly callsPerS: number;
  // Of the calls.
  readonly errorShare: number;
}

export interface Root<Of extends Flow> {
  // One, or those of a circle, by name.
  readonly services: readonly string[];
  // What fails there, and what fails because of it; the most failed calls first.
  readonly at: readonly Of[];
  readonly above: readonly Of[];
}

export function isFailing({ callsPerS, errorShare }: Pick<Flow, "callsPerS" | "errorShare">): boolean {
  return errorShare >= FAILING_SHARE && callsPerS >= FAILING_CALLS_PER_S;
}

export function failedPerS({ callsPerS, errorShare }: Pick<Flow, "callsPerS" | "errorShare">): number {
  return callsPerS * errorShare;
}

// The one under which most fails first. Nothing failing = none.
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

// Of each service those that it calls and whose failures explain its own.
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

// Where the failures of a service start: the services, or the circles of services, below which nothing more is.
function starts(next: ReadonlyMap<string, readonly string[]>): (service: string) => readonly (readonly string[])[] {
  const below = remembered((from: string): ReadonlySet<string> => {
    const reached = new Set([from]);
    // A set goes on with what is added while it is walked; each service is followed once.
    for (const name of reached) for (const to of next.get(name) ?? []) reached.add(to);
    return reached;
  });
  // What a service comes to is all that those below it can come to; as much only where they come to it again.
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
