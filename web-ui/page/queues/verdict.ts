// The answer to "are the jobs of this queue delivered, and if not, why?" from its figures. Pure.
import type { Queue, QueueStats } from "$wire/queues_pb";
import { some } from "../format/numbers";
import { age, when } from "../format/time";
import type { Level } from "../statistics/verdict";
import { heldText, isProblem, lateMs, remedyOf } from "./text";

export interface QueueVerdict {
  readonly level: Extract<Level, "failing" | "calm" | "silent">;
  readonly answer: string;
  readonly why: string;
}

// Jobs that are later than this are a problem.
export const LATE_MS = 60_000;

export function verdictOf(queue: Queue, stats: QueueStats, nowMs: number): QueueVerdict {
  const waiting = stats.waiting + stats.behind;
  if (queue.paused !== "") {
    return { level: "failing", answer: "Paused: no job is delivered.", why: `“${queue.paused}” (${queue.updatedBy || "unknown"}, ${when(queue.updatedAt)})` };
  }
  if (stats.held !== "") return { level: "failing", answer: `No job is delivered: ${heldText(stats.held)}.`, why: remedyOf(stats.held) };
  const held = stats.lanes.filter((lane) => isProblem(lane.held));
  if (held.length > 0) return ofHeld(held.map((lane) => lane.held), stats.lanes.length);
  const late = lateMs(stats, nowMs);
  if (late >= LATE_MS) {
    const reasons = [...new Set(stats.lanes.map((lane) => lane.held).filter((why) => why !== ""))];
    return {
      level: "failing",
      answer: `Jobs are late: the oldest has been due for ${age(late)}.`,
      why: reasons.length === 0 ? "" : `Reasons: ${reasons.map(heldText).join(", ")}. ${reasons.map(remedyOf).filter((text) => text !== "").join(" ")}`,
    };
  }
  const dead = stats.dead > 0n ? `${some(stats.dead, "job")} ${stats.dead === 1n ? "is" : "are"} dead: given up, kept, and can be replayed.` : "";
  if (waiting + stats.leased === 0n) return { level: "silent", answer: "No job waits.", why: dead };
  return { level: "calm", answer: "Due jobs are delivered.", why: dead };
}

function ofHeld(reasons: readonly string[], lanes: number): QueueVerdict {
  const each = [...new Set(reasons)];
  const [only] = each;
  const which = lanes === 1 ? "The jobs are held" : `The jobs of ${reasons.length} of ${some(lanes, "route")} are held`;
  return {
    level: "failing",
    answer: each.length === 1 && only !== undefined ? `${which}: ${heldText(only)}.` : `${which}.`,
    why: [
      ...(each.length === 1 ? [] : [`${each.map((why) => `${heldText(why)} (${reasons.filter((one) => one === why).length})`).join(", ")}.`]),
      ...each.map(remedyOf).filter((text) => text !== ""),
    ].join(" "),
  };
}
