// Blocked retries as text: the share of failed calls whose retry a gate blocked, and the main reason. Pure.
import type { RouteStats } from "$wire/fleet_pb";
import { share } from "../../format/numbers";

// Undefined = no retry was blocked in the window.
export function blockedRetries({ blockedRetries: blocked }: RouteStats): string | undefined {
  if (blocked === undefined) return undefined;
  const words = blocked.would ? "Retries that would be blocked" : "Blocked retries";
  return `${words}: ${share(blocked.share)} of failed calls (${blocked.mixed ? "mainly " : ""}${blocked.reason}).`;
}
