// A kill in words: what it stops ("Stop retries from orders to stock"), and why, where figures say it.
import type { RouteStats } from "$wire/fleet_pb";
import type { Names } from "../address.svelte";
import { extra } from "../overview/verdict";
import { rate, some, times } from "../words";

export function spoken({ callerService, callerCluster, calleeService, calleeMethod }: Names, calls: boolean): string {
  const any = (name: string) => name === "*";
  const from = any(callerService) ? "" : ` from ${callerService}`;
  const cluster = any(callerCluster) ? "" : ` (cluster ${callerCluster})`;
  const to = any(calleeService) ? "" : ` to ${calleeService}`;
  const method = any(calleeMethod) ? "" : ` ${calleeMethod}`;
  return `Stop ${calls ? "every call" : "retries"}${from + cluster + to + method || " everywhere"}`;
}

// Why the storm of these routes, the worst first, is to be stopped; empty = there is none.
export function stormReason(storming: readonly RouteStats[]): string {
  const [worst, ...others] = storming;
  if (worst === undefined) return "";
  const load = storming.reduce((sum, route) => sum + extra(route), 0);
  const beside = others.length === 0 ? "" : ` and ${some(others.length, "more route")}`;
  return `Retry storm: ${worst.key?.callerService ?? ""} → ${worst.key?.calleeService ?? ""} ${times(worst.amplification)}${beside}, ${rate(load)} extra attempts/s`;
}
