// Samples of the last 15 minutes for charts: one per second from this tab, and the server's spans of ten
// seconds for the time before and for gaps. Has no clock of its own.
import { create } from "@bufbuild/protobuf";
import type { Timestamp } from "@bufbuild/protobuf/wkt";
import { PastSchema } from "$wire/fleet_pb";
import type { Past, RouteStats } from "$wire/fleet_pb";
import { toMs } from "../format/time";

// A sample of a route, or of all routes together. Undefined = unknown.
export interface Sample {
  // Seconds since the epoch, by this machine's clock.
  readonly at: number;
  readonly callsPerS: number | undefined;
  readonly attemptsPerS: number | undefined;
  // Failed calls / calls; undefined without calls.
  readonly errorShare: number | undefined;
  // Of single routes only.
  readonly p50Ms?: number | undefined;
  readonly p99Ms?: number | undefined;
}

// The longest window of a chart, with a margin so that its line enters from outside.
export const PAST_S = 910;
const SPAN_S = 10;
// A longer gap breaks the line. The latest span of the server is older by the delay of reports.
const APART_S = 30;

export function sampleOf(route: RouteStats | undefined, at: number): Sample {
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

// Undefined without calls.
export function amplificationOf({ callsPerS = 0, attemptsPerS }: Sample): number | undefined {
  return callsPerS > 0 && attemptsPerS !== undefined ? attemptsPerS / callsPerS : undefined;
}

export function secondsOf(at: Timestamp | undefined): number {
  return at === undefined ? 0 : Number(at.seconds) + at.nanos / 1e9;
}

// Appends the present as a span, once one is due: rates cover as long.
export function withSpan(past: readonly Past[], routes: Iterable<RouteStats>, asOf: Timestamp | undefined): readonly Past[] {
  const now = secondsOf(asOf);
  const last = past.at(-1);
  if (asOf === undefined || (last !== undefined && now - secondsOf(last.until) < SPAN_S)) return past;
  const span = create(PastSchema, { until: asOf, span: { seconds: BigInt(SPAN_S) } });
  for (const { callsPerS, attemptsPerS, retriesPerS, hedgesPerS, errorShare } of routes) {
    span.callsPerS += callsPerS;
    span.attemptsPerS += attemptsPerS;
    span.retriesPerS += retriesPerS;
    span.hedgesPerS += hedgesPerS;
    span.failedPerS += callsPerS * errorShare;
  }
  return [...past.filter(({ until }) => secondsOf(until) > now - PAST_S), span];
}

export class Recent {
  #own: readonly Sample[] = [];
  #past: readonly Past[] = [];

  // Sets the samples of the server; `[]` = no new ones.
  setPast(past: readonly Past[]): void {
    if (past.length > 0) this.#past = past;
  }

  // Adds a sample. The server's clock is ahead of this machine's by `aheadS`. Drops samples that
  // are not older, as after a clock was set back.
  add(sample: Sample, aheadS: number): readonly Sample[] {
    this.#own = [...this.#own.filter(({ at }) => at > sample.at - PAST_S && at < sample.at), sample];
    const past = this.#past.map((span) => sampleOfSpan(span, aheadS)).filter(({ at }) => at > sample.at - PAST_S && this.#isNews(at));
    return withGaps([...past, ...this.#own].sort((a, b) => a.at - b.at), new Set(past));
  }

  // Samples of this tab are finer.
  #isNews(until: number): boolean {
    return !this.#own.some(({ at }) => at > until - SPAN_S && at <= until) && until < (this.#own.at(-1)?.at ?? Infinity);
  }
}

function sampleOfSpan({ until, callsPerS, attemptsPerS, failedPerS, p50, p99 }: Past, aheadS: number): Sample {
  return {
    at: secondsOf(until) - aheadS,
    callsPerS,
    attemptsPerS,
    errorShare: callsPerS > 0 ? Math.min(failedPerS / callsPerS, 1) : undefined,
    p50Ms: p50 && toMs(p50),
    p99Ms: p99 && toMs(p99),
  };
}

// Consecutive spans of the server have no gap between them.
function withGaps(samples: readonly Sample[], past: ReadonlySet<Sample>): Sample[] {
  return samples.flatMap((sample, index) => {
    const next = samples[index + 1];
    if (next === undefined) return [sample];
    const most = past.has(sample) && past.has(next) ? SPAN_S * 1.5 : APART_S;
    const gap = { at: sample.at + 1, callsPerS: undefined, attemptsPerS: undefined, errorShare: undefined };
    return next.at - sample.at > most ? [sample, gap] : [sample];
  });
}
