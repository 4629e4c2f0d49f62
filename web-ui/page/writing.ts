// Whether something can be changed now, and whether others were quicker.
import type { Names } from "./address.svelte";
import type { Board } from "./feed/board.svelte";
import type { Me, Written } from "./me.svelte";

// Why this cannot be changed; undefined = it can.
export function notWritable({ board, me }: { board: Board; me: Me }, what: Written, names?: readonly Names[]): string | undefined {
  switch (board.liveness) {
    case "down":
      return "Disconnected: nothing can be changed until the server answers again.";
    case "locked":
      return "Signed out: sign in to change anything.";
    case "loading":
      return "Nothing has been received yet.";
    default:
      // Kills are in force from the server's memory, and stored later.
      if (what !== "kill" && board.fleet?.unacceptedStore) return "The store is not the one that was known: only kills can be changed until an operator accepts it.";
      if (what !== "kill" && board.fleet?.staleSince) return "The store does not answer: only kills can be changed until it does.";
      return me.refusal(what, names);
  }
}

// Why what is being reviewed can not be written: others changed it meanwhile. Null = they removed it; undefined = nobody did.
export function overtaken(theirs: { readonly updatedBy: string; readonly revision: bigint } | null | undefined): string | undefined {
  if (theirs === undefined) return undefined;
  const what = theirs === null ? "It was deleted meanwhile" : `${theirs.updatedBy || "Unknown"} changed it meanwhile, at revision ${String(theirs.revision)}`;
  return `${what}: leave this to see both.`;
}
