// Keeps one Watch stream to the server open, whatever happens to it.
//
// A dead link looks alive, so silence beyond a limit counts as an end. Waits between attempts grow and are
// random, so that many pages do not come back to a restarted server at the same instant.
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import type { Transport } from "@connectrpc/connect";
import { Fleet as FleetService } from "$wire/fleet_pb";
import type { WatchResponse } from "$wire/fleet_pb";

export type Event =
  | { readonly kind: "message"; readonly message: WatchResponse }
  // The stream has ended; a new one is opened after the wait.
  | { readonly kind: "down"; readonly reason: string; readonly waitMs: number };

export type Listener = (event: Event) => void;

// The server says something every interval, were it only the time.
const INTERVAL_S = 1n;
const SILENCE_LIMIT_MS = 10_000;
const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 8_000;

// Half of the wait is sure, half is chance.
export function waitMs(failures: number, random: number): number {
  const wait = Math.min(FIRST_WAIT_MS * 2 ** Math.max(failures - 1, 0), LONGEST_WAIT_MS);
  return wait / 2 + (wait / 2) * random;
}

// Runs until the signal; returns only then.
export async function keepOpen(transport: Transport, listener: Listener, signal: AbortSignal): Promise<void> {
  let failures = 0;
  while (!signal.aborted) {
    const heard = { any: false };
    const reason = await readStream(transport, listener, signal, heard);
    if (signal.aborted) return;
    failures = heard.any ? 1 : failures + 1;
    const wait = waitMs(failures, Math.random());
    listener({ kind: "down", reason, waitMs: wait });
    await pause(wait, signal);
  }
}

// Reads one stream to its end and says why it ended.
async function readStream(
  transport: Transport,
  listener: Listener,
  signal: AbortSignal,
  heard: { any: boolean },
): Promise<string> {
  const attempt = new AbortController();
  const stop = () => { attempt.abort(); };
  signal.addEventListener("abort", stop);
  let silent = false;
  const giveUp = () => {
    silent = true;
    attempt.abort();
  };
  let watchdog = setTimeout(giveUp, SILENCE_LIMIT_MS);
  try {
    const request = { interval: { seconds: INTERVAL_S, nanos: 0 }, rules: true };
    const stream = createClient(FleetService, transport).watch(request, { signal: attempt.signal });
    for await (const message of stream) {
      clearTimeout(watchdog);
      watchdog = setTimeout(giveUp, SILENCE_LIMIT_MS);
      heard.any = true;
      listener({ kind: "message", message });
    }
    return "the server ended the stream";
  } catch (error) {
    if (silent) return `nothing was heard for ${SILENCE_LIMIT_MS / 1000} s`;
    return inWords(ConnectError.from(error));
  } finally {
    clearTimeout(watchdog);
    signal.removeEventListener("abort", stop);
    attempt.abort();
  }
}

function inWords(error: ConnectError): string {
  // A browser says no more than that fetch failed.
  if (error.code === Code.Unknown && error.cause instanceof TypeError) return "the server does not answer";
  return `${Code[error.code]}: ${error.rawMessage}`;
}

// Ends early when the browser is online again or the signal comes.
function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      globalThis.removeEventListener("online", done);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    globalThis.addEventListener("online", done);
    signal.addEventListener("abort", done);
  });
}
