// Changes that concern a queue: its own, and kill switches that match its routes. Pure.
import type { Change } from "$wire/history_pb";
import type { LaneStats } from "$wire/queues_pb";
import { patternOf } from "../history/objects";
import { matchesRoute } from "../kill/reach";
import { touchingBy } from "../routes/route/related_changes";
import type { Touch } from "../routes/route/related_changes";

export function touchingQueue(changes: readonly Change[], name: string, lanes: readonly LaneStats[]): Touch[] {
  return touchingBy(changes, ({ key }) => {
    if (key?.kind.case === "queue") return key.kind.value === name;
    const pattern = key?.kind.case === "kill" ? patternOf(key) : undefined;
    return pattern !== undefined && lanes.some(({ route }) => route !== undefined && matchesRoute(pattern, { key: route }));
  });
}
