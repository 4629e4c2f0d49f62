// What a kill stops, in words: "Stop retries from orders to stock".
import type { Names } from "../address.svelte";

export function spoken({ callerService, callerCluster, calleeService, calleeMethod }: Names, calls: boolean): string {
  const any = (name: string) => name === "*";
  const from = any(callerService) ? "" : ` from ${callerService}`;
  const cluster = any(callerCluster) ? "" : ` (cluster ${callerCluster})`;
  const to = any(calleeService) ? "" : ` to ${calleeService}`;
  const method = any(calleeMethod) ? "" : ` ${calleeMethod}`;
  return `Stop ${calls ? "every call" : "retries"}${from + cluster + to + method || " everywhere"}`;
}
