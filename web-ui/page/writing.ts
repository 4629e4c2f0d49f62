// Whether something can be changed now, and whether others were quicker.
import type { Board } from "./feed/board.svelte";

// Why nothing can be changed; undefined = it can. What the server refuses besides it says itself.
export function notWritable(board: Board): string | undefined {
  switch (board.liveness) {
    case "down":
      return "Disconnected: nothing can be changed until the server answers again.";
    case "locked":
      return "Signed out: sign in to change anything.";
    case "loading":
      return "Nothing has been received yet.";
    default:
      return board.fleet?.staleSince === undefined ? undefined : "The store does not answer: nothing can be changed until it does.";
  }
}

// Why what is being reviewed can not be written: others changed it meanwhile. Null = they removed it; undefined = nobody did.
export function overtaken(theirs: { readonly updatedBy: string; readonly revision: bigint } | null | undefined): string | undefined {
  if (theirs === undefined) return undefined;
  const what = theirs === null ? "Somebody removed it meanwhile" : `${theirs.updatedBy || "Somebody"} changed it meanwhile, at revision ${String(theirs.revision)}`;
  return `${what}: leave this to see both.`;
}
