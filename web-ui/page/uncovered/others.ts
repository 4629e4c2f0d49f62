// Who repeats besides Damper on a route: what its callee is sent that calls itself a repeat, and loops around calls.
import type { RouteStats } from "$wire/fleet_pb";
import { rate } from "../words";

export interface Repeater {
  readonly name: string;
  readonly perS: number;
  readonly explained: string;
}

export function repeaters({ served, outerLoopCallsPerS }: RouteStats): Repeater[] {
  const all: Repeater[] = [
    { name: "gRPC", perS: served?.grpcRepeatsPerS ?? 0, explained: "The callee is sent repeats by gRPC's own retries, by all its callers" },
    { name: "Envoy", perS: served?.envoyRepeatsPerS ?? 0, explained: "The callee is sent repeats by an Envoy proxy, by all its callers" },
    { name: "Damper", perS: served?.damperRepeatsPerS ?? 0, explained: "The callee is sent repeats by other routes that have a rule" },
    { name: "a loop in the caller", perS: outerLoopCallsPerS, explained: "Calls made again in a request after one had failed for good" },
  ];
  return all.filter(({ perS }) => perS >= 0.005).sort((a, b) => b.perS - a.perS);
}

export function words({ name, perS }: Repeater): string {
  return `${name} ${rate(perS)}/s`;
}
