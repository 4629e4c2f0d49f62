// The last minutes of single routes, so that a chart does not begin empty where the page has watched for a while.
//
// Of each route five figures a second are kept and nothing else. In a large fleet only routes that repeat or fail are:
// those are the ones that somebody will open. No clock of its own.
import type { RouteStats } from "$wire/fleet_pb";
import { toMs } from "../words";

export interface RouteSample {
  // Seconds since the epoch, by this machine's clock.
  readonly at: number;
  readonly callsPerS: number;
  readonly attemptsPerS: number;
  readonly errorShare: number | undefined;
  readonly p50Ms: number | undefined;
  readonly p99Ms: number | undefined;
}

// The chart's window and a little more, so that its line enters from outside.
export const PAST_S = 310;
const MOST_ROUTES = 400;

export function sampleOf(route: RouteStats | undefined, at: number): RouteSample {
  const called = route !== undefined && route.callsPerS > 0;
  return {
    at,
    callsPerS: route?.callsPerS ?? 0,
    attemptsPerS: route?.attemptsPerS ?? 0,
    errorShare: called ? route.errorShare : undefined,
    p50Ms: route?.p50 && toMs(route.p50),
    p99Ms: route?.p99 && toMs(route.p99),
  };
}

// With one more at the end, without what is too old; time never runs backwards.
export function withSample(before: readonly RouteSample[], sample: RouteSample): RouteSample[] {
  return [...before.filter(({ at }) => at > sample.at - PAST_S && at < sample.at), sample];
}

export class Past {
  readonly #samples = new Map<string, RouteSample[]>();

  take(routes: ReadonlyMap<string, RouteStats>, at: number): void {
    const few = routes.size <= MOST_ROUTES;
    for (const [key, route] of routes) {
      const kept = this.#samples.get(key);
      const worthIt = few || route.errorShare > 0 || route.attemptsPerS > route.callsPerS + 0.05;
      if (kept === undefined && (!worthIt || this.#samples.size >= MOST_ROUTES)) continue;
      this.#samples.set(key, withSample(kept ?? [], sampleOf(route, at)));
    }
    for (const [key, samples] of this.#samples) {
      if ((samples.at(-1)?.at ?? 0) <= at - PAST_S) this.#samples.delete(key);
    }
  }

  of(key: string): readonly RouteSample[] {
    return this.#samples.get(key) ?? [];
  }

  forget(): void {
    this.#samples.clear();
  }
}
