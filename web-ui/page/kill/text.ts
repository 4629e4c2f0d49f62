// A kill as text: its effect ("Stop retries from orders to stock"), its reason from statistics, and its end.
import type { RouteStats } from "$wire/fleet_pb";
import type { KillSwitch } from "$wire/kills_pb";
import type { Names } from "../format/key";
import { extra } from "../statistics/verdict";
import { rate, some, times } from "../format/numbers";

export function killTitle({ callerService, callerCluster, calleeService, calleeMethod }: Names, calls: boolean): string {
  const any = (name: string) => name === "*";
  const from = any(callerService) ? "" : ` from ${callerService}`;
  const cluster = any(callerCluster) ? "" : ` (cluster ${callerCluster})`;
  const to = any(calleeService) ? "" : ` to ${calleeService}`;
  const method = any(calleeMethod) ? "" : ` ${calleeMethod}`;
  return `Stop ${calls ? "every call" : "retries"}${from + cluster + to + method || " everywhere"}`;
}

// Several kills that differ by their callees.
export function killsTitle(all: readonly Names[], calls: boolean): string {
  const [first, ...others] = all;
  if (first === undefined) return "";
  if (others.length === 0) return killTitle(first, calls);
  const callees = all.map(({ calleeService }) => calleeService);
  return `Stop ${calls ? "every call" : "retries"} to ${callees.slice(0, -1).join(", ")} and ${callees.at(-1) ?? ""}`;
}

// The suggested reason for routes in a storm, the worst first; empty without routes.
export function stormReason(storming: readonly RouteStats[]): string {
  const [worst, ...others] = storming;
  if (worst === undefined) return "";
  const load = storming.reduce((sum, route) => sum + extra(route), 0);
  const more = others.length === 0 ? "" : ` and ${some(others.length, "more route")}`;
  return `Retry storm: ${worst.key?.callerService ?? ""} → ${worst.key?.calleeService ?? ""} ${times(worst.amplification)}${more}, ${rate(load)} retries/s`;
}

// The effect of a kill as text: "retries from orders to stock are stopped".
export function killed({ calls, key }: KillSwitch): string {
  const what = calls ? "all calls" : "retries";
  if (key === undefined) return `${what} are ${calls ? "rejected" : "stopped"}`;
  const any = (name: string) => name === "*";
  const caller = any(key.callerService) ? "" : ` from ${key.callerService}`;
  const cluster = any(key.callerCluster) ? "" : ` (cluster ${key.callerCluster})`;
  const callee = any(key.calleeService) ? "" : ` to ${key.calleeService}`;
  const method = any(key.calleeMethod) ? "" : ` ${key.calleeMethod}`;
  return `${what}${caller + cluster + callee + method || " everywhere"} are ${calls ? "rejected" : "stopped"}`;
}

// The command that ends a kill.
export function undoKill({ key }: KillSwitch): string {
  const parts = [
    ["--caller", key?.callerService],
    ["--cluster", key?.callerCluster],
    ["--callee", key?.calleeService],
    ["--method", key?.calleeMethod],
  ].filter(([, name]) => name !== undefined && name !== "*");
  const flags = parts.map(([flag, name]) => `${flag} '${name?.replaceAll("'", `'\\''`) ?? ""}'`).join(" ");
  return `damper unkill ${flags || "--all"}`;
}
