// The stream as the components see it.
import { expect, test } from "vitest";
import { messageEvent, route } from "../testing/messages";
import { Board } from "./board.svelte";

test("what comes in parts is one sample: half of the routes are not drawn as if they were all", () => {
  const board = new Board();
  board.take(messageEvent({ reset: true, routes: [route("orders")] }));
  board.take(messageEvent({ continued: true, routes: [route("gateway", { errorShare: 0.5 })] }));
  expect(board.samples.map(({ callsPerS, errorShare }) => [callsPerS, errorShare])).toEqual([[20, 0.25]]);
});
