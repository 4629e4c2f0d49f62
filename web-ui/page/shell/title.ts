// The sign of what is wrong now, for the title of the tab: seen from any other one. Empty = nothing.
import type { Fleet } from "../feed/state";
import { verdict } from "../statistics/verdict";

export function trouble(fleet: Pick<Fleet, "kills" | "routes"> | undefined, isDown: boolean): string {
  if (isDown) return "○ ";
  if (fleet === undefined) return "";
  if (fleet.kills.length > 0) return "■ ";
  return verdict([...fleet.routes.values()]).level === "storm" ? "▲ " : "";
}
