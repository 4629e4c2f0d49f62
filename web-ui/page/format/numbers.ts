// Numbers as text: rates, counts, shares, amplification.
export const NONE = "–";

// From here on an amplification is marked.
export const HIGH_AMPLIFICATION = 1.5;

export function rate(perS: number): string {
  if (perS >= 99.95) return whole(Math.round(perS));
  return perS.toFixed(perS > 0 && perS < 0.095 ? 2 : 1);
}

// A count of things, wherever one is shown: 10,000. Revisions are names and have no separators.
export function whole(count: number | bigint): string {
  return count.toLocaleString("en");
}

// A count with its noun: 1 route, 12,000 routes.
export function some(count: number | bigint, one: string, many = `${one}s`): string {
  return `${whole(count)} ${Number(count) === 1 ? one : many}`;
}

// How many of how many; one figure where it is all.
export function counted(found: number | bigint, all: number | bigint): string {
  return found === all ? whole(all) : `${whole(found)} of ${whole(all)}`;
}

export function times(amplification: number | undefined): string {
  return amplification === undefined || amplification === 0 ? NONE : `×${amplification.toFixed(2)}`;
}

// Calls and attempts are counted when they end, so at the edges of a window there can be a few attempts too many.
const AT_THE_EDGES = 1.05;

// A measured amplification next to its bound.
export function timesWithin(amplification: number | undefined, most: number | bigint | undefined): string {
  const bound = Number(most ?? 0);
  const isTooMany = amplification !== undefined && amplification > bound && amplification <= bound * AT_THE_EDGES;
  return times(isTooMany ? bound : amplification);
}

// So much more than the bound is of a time when another rule was in force.
export function isOver(amplification: number, most: number): boolean {
  return amplification > most * AT_THE_EDGES;
}

export function isHigh(amplification: number | undefined): boolean {
  return amplification !== undefined && amplification > HIGH_AMPLIFICATION;
}

export function share(part: number): string {
  if (part === 0) return "0 %";
  if (part < 0.001) return "<0.1 %";
  return `${(part * 100).toFixed(part < 0.9995 ? 1 : 0)} %`;
}

// Nothing is known of the chain where no caller serves requests.
export function coverage(part: number, routes: readonly { readonly totalServingCalls: bigint }[]): string {
  return routes.some(({ totalServingCalls }) => totalServingCalls > 0n) ? share(part) : "–";
}

// Three digits.
export function trim(value: number): string {
  return Number(value.toPrecision(3)).toString();
}
