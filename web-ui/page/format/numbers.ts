// Numbers as text: rates, counts, shares, amplification.
export const NONE = "–";

// Higher amplifications are marked.
export const HIGH_AMPLIFICATION = 1.5;

export function rate(perS: number): string {
  if (perS >= 99.95) return whole(Math.round(perS));
  return perS.toFixed(perS > 0 && perS < 0.095 ? 2 : 1);
}

// A count with separators: 10,000. Revisions have none.
export function whole(count: number | bigint): string {
  return count.toLocaleString("en");
}

// A count with its noun: 1 route, 12,000 routes.
export function some(count: number | bigint, one: string, many = `${one}s`): string {
  return `${whole(count)} ${Number(count) === 1 ? one : many}`;
}

// "3 of 12"; one number if both are equal.
export function counted(found: number | bigint, all: number | bigint): string {
  return found === all ? whole(all) : `${whole(found)} of ${whole(all)}`;
}

export function times(amplification: number | undefined): string {
  return amplification === undefined || amplification === 0 ? NONE : `×${amplification.toFixed(2)}`;
}

// Calls and attempts are counted when they end, so a window can contain a few attempts more than its calls
// allow.
const AT_THE_EDGES = 1.05;

// A measured amplification, not above its bound by mere counting.
export function timesWithin(amplification: number | undefined, most: number | bigint | undefined): string {
  const bound = Number(most ?? 0);
  const isTooMany = amplification !== undefined && amplification > bound && amplification <= bound * AT_THE_EDGES;
  return times(isTooMany ? bound : amplification);
}

// The excess is too large for counting: an earlier rule allowed more.
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

// Unknown if no caller serves requests.
export function coverage(part: number, routes: readonly { readonly totalServingCalls: bigint }[]): string {
  return routes.some(({ totalServingCalls }) => totalServingCalls > 0n) ? share(part) : "–";
}

// Rounds to three digits.
export function trim(value: number): string {
  return Number(value.toPrecision(3)).toString();
}
