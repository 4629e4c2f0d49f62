// Whether a change is possible now, and whether a concurrent change prevents it.
import type { Names } from "../format/key";
import type { Board } from "../feed/board.svelte";
import type { Me, Written } from "./identity.svelte";

// Why a change is not possible; undefined = it is.
export function notWritable({ board, me }: { board: Board; me: Me }, what: Written, names?: readonly Names[]): string | undefined {
  switch (board.liveness) {
    case "down":
      return "Disconnected: no changes are possible until the server responds.";
    case "locked":
      return "Signed out: sign in to change anything.";
    case "loading":
      return "No data received yet.";
    default:
      // A kill takes effect from the server's memory and is stored later.
      if (what !== "kill" && board.fleet?.unacceptedStore) return "The store was replaced: only kill switches can be changed until an operator accepts it.";
      if (what !== "kill" && board.fleet?.staleSince) return "The store is not responding: only kill switches can be changed.";
      return me.refusal(what, names);
  }
}

// A concurrent change that prevents the write. Null = deleted; undefined = none.
export function overtaken(theirs: { readonly updatedBy: string; readonly revision: bigint } | null | undefined): string | undefined {
  if (theirs === undefined) return undefined;
  const what = theirs === null ? "It was deleted meanwhile" : `${theirs.updatedBy || "Unknown"} changed it meanwhile, at revision ${String(theirs.revision)}`;
  return `${what}: close this dialog to compare.`;
}
