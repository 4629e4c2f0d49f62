// What a process of the company has counted since it began: calls at steady rates with a little chance, most of them
// fine, some routes repeating much.
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { Fate } from "../gen/damper/v1/distribution_pb";
import type { ReportSchema } from "../gen/damper/v1/distribution_pb";
import { failedCalls } from "./failed";
import { edges, methods } from "./table";

interface Route {
  readonly calleeService: string;
  readonly calleeMethod: string;
  readonly callsPerS: number;
  // Attempts / calls.
  readonly amplification: number;
  readonly errorShare: number;
  readonly coverage: number;
  // Index of the middle one of the engine's latency buckets.
  readonly bucket: number;
}

// The first method of an edge carries most of what is told of the edge.
const OF_THE_FIRST = 0.75;
const WINDOW_S = 10;

export class Traffic {
  readonly #routes: readonly Route[];
  readonly #begunMs = Date.now();
  // Tells its failed calls from those of the service's other processes.
  readonly #at: number;
  #reports = 0;

  // One of so many processes of a service, by its number.
  constructor(service: string, at: number, of: number) {
    this.#at = at;
    this.#routes = edges.flatMap((edge, place) => (edge.callerService === service ? routes(edge, place, of) : []));
  }

  report(nowMs: number): MessageInitShape<typeof ReportSchema> {
    const seconds = (nowMs - this.#begunMs) / 1000 + WINDOW_S;
    this.#reports += 1;
    const told = this.#routes.map((route) => ({
      ...counted(route, seconds),
      failedCalls: route.errorShare > 0 ? failedCalls(route.bucket * 10 + this.#at, this.#reports, nowMs) : [],
    }));
    const governed = told.reduce((sum, { calls }) => sum + calls, 0n);
    return { routes: told, governedCalls: governed, since: { seconds: BigInt(Math.floor(seconds)), nanos: 0 } };
  }
}

function routes(edge: (typeof edges)[number], place: number, of: number): Route[] {
  const names = methods(edge.calleeService, place);
  return names.map((calleeMethod, at): Route => {
    const share = at === 0 ? OF_THE_FIRST : (1 - OF_THE_FIRST) / (names.length - 1);
    return {
      calleeService: edge.calleeService,
      calleeMethod,
      callsPerS: (edge.callsPerS * share) / of,
      amplification: at === 0 ? edge.amplification : 1,
      errorShare: at === 0 ? edge.errorShare : 0,
      coverage: edge.chainCoverage,
      bucket: 72 + ((place * 7 + at * 3) % 24),
    };
  });
}

function counted({ calleeService, calleeMethod, callsPerS, amplification, errorShare, coverage, bucket }: Route, seconds: number) {
  // With a slow wave, so that the charts are no straight lines.
  const calls = Math.round(callsPerS * (seconds + 2.4 * Math.sin(seconds / 9 + bucket)));
  const retries = Math.round(calls * (amplification - 1));
  const failed = Math.round(calls * errorShare);
  const helped = Math.min(Math.round(retries * 0.4), calls - failed);
  const refused = Math.round(failed * 0.6);
  const count = (fate: Fate, of: number) => ({ fate, would: false, count: BigInt(of) });
  return {
    calleeService,
    calleeMethod,
    calls: BigInt(calls),
    attempts: BigInt(calls + retries),
    retries: BigInt(retries),
    noContextCalls: BigInt(Math.round(calls * (1 - coverage))),
    fates: [count(Fate.OK, calls - failed - helped), count(Fate.OK_AFTER_RETRY, helped), count(Fate.RETRY_BREAKER, refused),
      count(Fate.ATTEMPTS_EXHAUSTED, failed - refused)].filter((each) => each.count > 0n),
    codes: [{ code: 0, count: BigInt(calls - failed) }, { code: Code.Unavailable, count: BigInt(retries + failed) }],
    latency: [-3, -1, 0, 1, 2, 6, 14].map((off, at) => ({ bucket: bucket + off, count: BigInt(Math.round(calls * ([0.1, 0.25, 0.3, 0.2, 0.1, 0.04, 0.01][at] ?? 0))) })),
    state: { windowFailures: BigInt(Math.round((failed / seconds) * WINDOW_S)), windowSuccesses: BigInt(Math.round(((calls - failed) / seconds) * WINDOW_S)),
      breakerRefuses: errorShare > 0.1 },
  };
}
