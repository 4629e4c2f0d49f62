// Changes of jobs: what each is called and does.
import type { Code } from "$wire/policy_pb";
import type { JobState } from "$wire/jobs_pb";
import { JobChange } from "$wire/queues_pb";
import type { Names } from "../format/key";

// The jobs of a change.
export interface Selection {
  readonly queue: string;
  readonly states?: JobState[];
  readonly route?: Names;
  readonly code?: Code;
  readonly key?: string;
  readonly jobIds?: string[];
}

export interface Wanted {
  readonly filter: Selection;
  readonly change: JobChange;
  // Which jobs of the queue, as text; empty = all.
  readonly of: string;
}

interface Words {
  readonly verb: string;
  readonly past: string;
  readonly effect: string;
}

export const CHANGES: Record<JobChange, Words> = {
  [JobChange.UNSPECIFIED]: { verb: "Change", past: "changed", effect: "" },
  [JobChange.RUN]: { verb: "Run", past: "made due now", effect: "They are due now, and delivered as fast as the pace allows." },
  [JobChange.CANCEL]: { verb: "Cancel", past: "cancelled", effect: "They are never delivered, and their bodies are deleted. This cannot be undone." },
  [JobChange.REPLAY]: { verb: "Replay", past: "set to wait again", effect: "They wait again with all their attempts, one after the other." },
  [JobChange.PURGE]: { verb: "Delete", past: "deleted", effect: "They are deleted with their bodies. This cannot be undone." },
};
