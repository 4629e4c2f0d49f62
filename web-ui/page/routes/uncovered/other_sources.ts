// Retries on a route that its rule does not cause: marked requests to the callee, and loops in the caller.
import type { RouteStats } from "$wire/fleet_pb";
import { rate } from "../../format/numbers";

export interface RetrySource {
  readonly name: string;
  readonly perS: number;
  readonly explained: string;
}

export function retrySources({ served, outerLoopCallsPerS }: RouteStats): RetrySource[] {
  const all: RetrySource[] = [
    { name: "gRPC", perS: served?.grpcRepeatsPerS ?? 0, explained: "Retries by gRPC clients, from all callers of the callee" },
    { name: "Envoy", perS: served?.envoyRepeatsPerS ?? 0, explained: "Retries by Envoy proxies, from all callers of the callee" },
    { name: "Damper", perS: served?.damperRepeatsPerS ?? 0, explained: "Retries by Damper on other routes to the callee" },
    { name: "a loop in the caller", perS: outerLoopCallsPerS, explained: "Calls that the caller makes again after a failure, in a loop or by its gRPC client" },
  ];
  return all.filter(({ perS }) => perS >= 0.005).sort((a, b) => b.perS - a.perS);
}

export function sourceText({ name, perS }: RetrySource): string {
  return `${name} ${rate(perS)}/s`;
}
