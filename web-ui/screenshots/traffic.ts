// Counters of a process of the company: calls at steady rates with some randomness, and attempts that fail
// with a probability. Retries and fates follow from that and from the rule.
import type { MessageInitShape } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { Fate } from "../gen/damper/v1/distribution_pb";
import type { ReportSchema } from "../gen/damper/v1/distribution_pb";
import { Mode } from "../gen/damper/v1/policy_pb";
import { failedCalls } from "./failed_calls";
import { edges, inForce, methods, storms } from "./table";

type Edge = (typeof edges)[number];

interface Route {
  readonly calleeService: string;
  readonly calleeMethod: string;
  readonly callsPerS: number;
  // Per attempt.
  readonly failing: number;
  // Per call, under the current rule.
  readonly sends: number;
  // Of calls that fail.
  readonly fate: Fate;
  readonly would: boolean;
  // Whether a rule applies, and the state of its retry breaker.
  readonly ruled: boolean;
  readonly refuses: boolean;
  readonly coverage: number;
  // Index of the median among the engine's latency buckets.
  readonly bucket: number;
}

// The first method of an edge has most of its traffic.
const OF_THE_FIRST = 0.75;
// Of the retry breaker.
const WINDOW_S = 10;
// The ratio of the strictest retry breaker in the table.
const ORDINARY = 0.08;

export class Traffic {
  readonly #routes: readonly Route[];
  readonly #begunMs = Date.now();
  // Distinguishes its failed calls from those of other processes.
  readonly #at: number;
  #reports = 0;
  #reportedS = 0;

  // The number of the process within its service.
  constructor(service: string, at: number, of: number, override = Mode.UNSPECIFIED) {
    this.#at = at;
    this.#routes = edges.flatMap((edge, place) => (edge.callerService === service ? routes(edge, place, of, override) : []));
  }

  report(nowMs: number): MessageInitShape<typeof ReportSchema> {
    const seconds = (nowMs - this.#begunMs) / 1000 + WINDOW_S;
    const routes = this.#routes.map((route) => {
      const failed = count(route, seconds).failed - count(route, this.#reportedS).failed;
      return { ...counted(route, seconds), failedCalls: failedCalls(route, failed, route.bucket * 10 + this.#at, this.#reports, nowMs) };
    });
    this.#reports += 1;
    this.#reportedS = seconds;
    const governed = routes.reduce((sum, { calls }) => sum + calls, 0n);
    return { routes, governedCalls: governed, since: { seconds: BigInt(Math.floor(seconds)), nanos: 0 } };
  }
}

function routes(edge: Edge, place: number, of: number, override: Mode): Route[] {
  const names = methods(edge.calleeService, place);
  return names.map((calleeMethod, at): Route => {
    const share = at === 0 ? OF_THE_FIRST : (1 - OF_THE_FIRST) / (names.length - 1);
    const callsPerS = (edge.callsPerS * share) / of;
    const failing = at === 0 ? chance(edge) : 0;
    return {
      calleeService: edge.calleeService,
      calleeMethod,
      callsPerS,
      failing,
      ...governed(inForce(edge, place, at), override, failing),
      coverage: edge.chainCoverage,
      bucket: 72 + ((place * 7 + at * 3) % 24),
    };
  });
}

// A storm sends up to three attempts, and this share of calls still fails.
function chance(edge: Edge): number {
  return storms(edge) ? Math.cbrt(edge.errorShare) : Math.max(edge.errorShare, Math.min(edge.amplification - 1, ORDINARY));
}

// Retries continue while successes pay for failures.
function governed(policy: ReturnType<typeof inForce>, override: Mode, failing: number) {
  if (policy === undefined || policy.mode === "off") return { ruled: false, refuses: false, sends: 1, fate: Fate.POLICY_OFF, would: false };
  const { retry, retry_breaker: breaker } = policy;
  const refuses = "earn" in breaker && failing ** 2 > breaker.earn * (1 - failing);
  const would = policy.mode === "observe" || override === Mode.OBSERVE;
  const allowed = would ? Fate.RETRY : Fate.ATTEMPTS_EXHAUSTED;
  return { ruled: true, refuses, sends: would || refuses ? 1 : retry.max_attempts, fate: refuses ? Fate.RETRY_BREAKER : allowed, would };
}

// Counters never fall.
function count({ callsPerS, failing, sends, bucket }: Route, seconds: number) {
  // With a slow wave, so that charts are not straight lines.
  const begun = callsPerS * Math.max(0, seconds + 2.4 * Math.sin(seconds / 9 + bucket));
  const lost = failing ** sends;
  const repeated = Array.from({ length: sends - 1 }, (_, nr) => failing ** (nr + 1)).reduce((sum, share) => sum + share, 0);
  const [ok, helped, failed, retries] = [1 - failing, failing - lost, lost, repeated].map((share) => Math.round(begun * share)) as [number, number, number, number];
  return { ok, helped, failed, retries, calls: ok + helped + failed };
}

function counted(route: Route, seconds: number) {
  const { calleeService, calleeMethod, coverage, bucket, fate, would, ruled, refuses } = route;
  const { ok, helped, failed, retries, calls } = count(route, seconds);
  const before = count(route, seconds - WINDOW_S);
  return {
    calleeService,
    calleeMethod,
    calls: BigInt(calls),
    attempts: BigInt(calls + retries),
    retries: BigInt(retries),
    noContextCalls: BigInt(Math.round(calls * (1 - coverage))),
    fates: [{ fate: Fate.OK, would: false, count: BigInt(ok) }, { fate: Fate.OK_AFTER_RETRY, would: false, count: BigInt(helped) },
      { fate, would, count: BigInt(failed) }].filter((each) => each.count > 0n),
    codes: [{ code: 0, count: BigInt(ok + helped) }, { code: Code.Unavailable, count: BigInt(retries + failed) }],
    latency: [-3, -1, 0, 1, 2, 6, 14].map((off, at) => ({ bucket: bucket + off, count: BigInt(Math.round(calls * ([0.1, 0.25, 0.3, 0.2, 0.1, 0.04, 0.01][at] ?? 0))) })),
    ...(ruled && { state: { windowFailures: BigInt(retries + failed - before.retries - before.failed),
      windowSuccesses: BigInt(ok + helped - before.ok - before.helped), breakerRefuses: refuses } }),
  };
}
