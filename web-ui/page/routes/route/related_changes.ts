// Changes of rules, guards and kills that match a route, and their marks on its charts. Pure.
import type { Change, ObjectChange } from "$wire/history_pb";
import type { RouteStats } from "$wire/fleet_pb";
import { kindOf, patternOf, verbOf, whoOf } from "../../history/objects";
import { matchesRoute } from "../../kill/reach";
import type { Mark } from "../../parts/chart/marks";
import { clock } from "../../format/time";

export interface Touch {
  readonly change: Change;
  // Its objects that match the route or queue.
  readonly objects: readonly ObjectChange[];
  // "rule changed, kill set".
  readonly words: string;
  readonly href: string;
}

const SIGN = { rule: "◆", guard: "▣", queue: "▤", kill: "■", token: "○", jobs: "◇" } as const;

export function touching(changes: readonly Change[], key: RouteStats["key"]): Touch[] {
  return touchingBy(changes, (object) => {
    const pattern = patternOf(object.key);
    return pattern !== undefined && key !== undefined && matchesRoute(pattern, { key });
  });
}

// The changes with such an object: the newest first, each once.
export function touchingBy(changes: readonly Change[], isConcerned: (object: ObjectChange) => boolean): Touch[] {
  const found = new Map<bigint, Touch>();
  for (const change of changes) {
    const objects = change.objects.filter(isConcerned);
    if (objects.length === 0) continue;
    const before = found.get(change.revision)?.objects ?? [];
    const all = [...before, ...objects];
    const words = [...new Set(all.map((object) => `${kindOf(object.key)} ${verbOf(object)}`))].join(", ");
    found.set(change.revision, { change, objects: all, words, href: `/history?rev=${String(change.revision)}` });
  }
  return [...found.values()].sort((a, b) => (a.change.revision < b.change.revision ? 1 : -1));
}

// By this machine's clock; the server's is ahead of it by `aheadS`.
export function marksOf(touches: readonly Touch[], aheadS: number): Mark[] {
  return touches.flatMap(({ change, objects, words, href }) => {
    if (change.at === undefined) return [];
    const at = Number(change.at.seconds) + change.at.nanos / 1e9 - aheadS;
    const kinds = objects.map(({ key }) => kindOf(key));
    const kind = kinds.includes("kill") ? "kill" : (kinds[0] ?? "rule");
    return [{ at, sign: SIGN[kind], words: `${words} by ${whoOf(change)} at ${clock(change.at)}, revision ${String(change.revision)}`, href }];
  });
}
