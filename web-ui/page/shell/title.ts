// The sign of a problem in the tab's title; empty without one.
import type { Fleet } from "../feed/state";
import { verdict } from "../statistics/verdict";

export function trouble(fleet: Pick<Fleet, "kills" | "routes"> | undefined, isDown: boolean): string {
  if (isDown) return "○ ";
  if (fleet === undefined) return "";
  if (fleet.kills.length > 0) return "■ ";
  return verdict([...fleet.routes.values()]).level === "storm" ? "▲ " : "";
}
