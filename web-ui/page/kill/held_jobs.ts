// The jobs of queues that a kill switch would hold, by current figures. Pure.
import type { QueueStats } from "$wire/queues_pb";
import type { Names } from "../format/key";
import { some } from "../format/numbers";
import { matchesRoute } from "./reach";

export interface HeldJobs {
  readonly jobs: bigint;
  readonly queues: number;
}

// Each route counts once.
export function heldJobs(targets: readonly Names[], stats: readonly QueueStats[]): HeldJobs {
  const held = stats.map(({ lanes }) => lanes.filter(({ route }) => route !== undefined && targets.some((each) => matchesRoute(each, { key: route })))
    .reduce((sum, { waiting }) => sum + waiting, 0n));
  return { jobs: held.reduce((sum, each) => sum + each, 0n), queues: held.filter((each) => each > 0n).length };
}

// Empty without jobs. A kill of retries holds only jobs that were sent before, which the figures do not
// separate.
export function heldJobsText({ jobs, queues }: HeldJobs, calls: boolean): string {
  if (jobs === 0n) return "";
  const all = `${some(jobs, "waiting job")} of ${some(queues, "queue")}`;
  return calls ? `It also holds ${all} until it ends.` : `It also holds those of ${all} that were sent before, until it ends.`;
}
