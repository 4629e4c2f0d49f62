// Dead jobs by route and reason. Pure.
//
// The server has no counts of dead jobs by route or reason, so they are counted here, of as many jobs as one
// response has: the oldest ones. The page shows how many there are in all.
import type { Timestamp } from "@bufbuild/protobuf/wkt";
import { JobState } from "$wire/jobs_pb";
import type { Code, RouteKey } from "$wire/policy_pb";
import type { Job } from "$wire/queues_pb";
import { codeName } from "../routes/route/failed_calls";
import { keyText } from "../format/key";
import type { Selection } from "./change";
import { msOf, reasonOf, routeText } from "./text";

export interface DeadGroup {
  readonly name: string;
  readonly route: RouteKey | undefined;
  // Code of the last failure; undefined = none is recorded.
  readonly code: Code | undefined;
  // Why they were given up, each once.
  readonly reasons: readonly string[];
  readonly jobs: number;
  // The one that died last.
  readonly last: Job;
  readonly filter: Selection;
  readonly of: string;
}

// The largest groups first.
export function deadGroups(queue: string, jobs: readonly Job[]): DeadGroup[] {
  const groups = new Map<string, Job[]>();
  for (const job of jobs) {
    const name = `${keyText(job.route)} ${String(codeOf(job) ?? "")}`;
    groups.set(name, [...(groups.get(name) ?? []), job]);
  }
  return [...groups].flatMap(([name, members]) => group(queue, name, members)).sort((a, b) => b.jobs - a.jobs || (a.name < b.name ? -1 : 1));
}

function group(queue: string, name: string, members: readonly Job[]): DeadGroup[] {
  const last = [...members].sort((a, b) => time(b.at) - time(a.at))[0];
  if (last === undefined) return [];
  const [code, route] = [codeOf(last), last.route];
  const states = [JobState.DEAD];
  // A filter cannot ask for jobs without a code: then it names them.
  const filter = route === undefined || code === undefined
    ? { queue, states, jobIds: members.map(({ jobId }) => jobId) }
    : { queue, states, route, code };
  const of = `Dead jobs of ${routeText(route)}, last failure ${code === undefined ? "not recorded" : codeName(code)}`;
  return [{ name, route, code, reasons: [...new Set(members.map(reasonOf))], jobs: members.length, last, filter, of }];
}

function codeOf(job: Job): Code | undefined {
  return job.failures.at(-1)?.code;
}

function time(at: Timestamp | undefined): number {
  return msOf(at) ?? 0;
}
