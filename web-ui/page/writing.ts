// Whether something can be changed now.
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
