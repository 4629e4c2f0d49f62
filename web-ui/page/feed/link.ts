// Keeps one Watch stream open, through any failure.
//
// A broken connection may stay silent, so silence beyond a limit ends the stream. Waits between attempts grow
// and are random, so that browsers do not reconnect to a restarted server at the same instant.
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import type { Transport } from "@connectrpc/connect";
import { ErrorInfoSchema } from "$gen/google/rpc/error_details_pb";
import { Fleet as FleetService } from "$wire/fleet_pb";
import { compact } from "./compact";
import type { CompactMessage } from "./compact";

export type Event =
  | { readonly kind: "message"; readonly message: CompactMessage }
  // The stream has ended; a new one is opened after the wait.
  | { readonly kind: "down"; readonly reason: string; readonly waitMs: number }
  // The server requires a sign-in. `why` = the reason in its error's ErrorInfo.
  | { readonly kind: "locked"; readonly why: string };

export type Listener = (event: Event) => void;

// The server sends a message every interval, at least with the time.
const INTERVAL_S = 1n;
const SILENCE_LIMIT_MS = 10_000;
const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 8_000;
// Another tab may sign in.
const LOCKED_WAIT_MS = 15_000;

// Ends a wait; `again` also ends the stream, because the identity has changed.
export class Wake extends EventTarget {
  again(): void {
    this.dispatchEvent(new Event("again"));
  }
}

// Half of the wait is fixed, half is random.
export function waitMs(failures: number, random: number): number {
  const wait = Math.min(FIRST_WAIT_MS * 2 ** Math.max(failures - 1, 0), LONGEST_WAIT_MS);
  return wait / 2 + (wait / 2) * random;
}

// Returns after the signal.
export async function keepOpen(
  transport: Transport,
  listener: Listener,
  signal: AbortSignal,
  wake: Wake = new Wake(),
): Promise<void> {
  let failures = 0;
  while (!signal.aborted) {
    const received = { any: false };
    const end = await readStream(transport, listener, signal, wake, received);
    if (signal.aborted) return;
    if (end.kind === "again") continue;
    if (end.kind === "locked") {
      listener({ kind: "locked", why: end.why });
      await pause(LOCKED_WAIT_MS, signal, wake);
      continue;
    }
    failures = received.any ? 1 : failures + 1;
    const wait = waitMs(failures, Math.random());
    listener({ kind: "down", reason: end.reason, waitMs: wait });
    await pause(wait, signal, wake);
  }
}

// Why a stream ended.
type End =
  | { readonly kind: "again" }
  | { readonly kind: "locked"; readonly why: string }
  | { readonly kind: "broken"; readonly reason: string };

function broken(reason: string): End {
  return { kind: "broken", reason };
}

// Reads one stream to its end and returns why it ended.
async function readStream(
  transport: Transport,
  listener: Listener,
  signal: AbortSignal,
  wake: Wake,
  received: { any: boolean },
): Promise<End> {
  const attempt = new AbortController();
  const stop = () => { attempt.abort(); };
  let again = false;
  const beginAgain = () => {
    again = true;
    attempt.abort();
  };
  signal.addEventListener("abort", stop);
  wake.addEventListener("again", beginAgain);
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
      received.any = true;
      listener({ kind: "message", message: compact(message) });
    }
    return broken("the server ended the stream");
  } catch (error) {
    if (again) return { kind: "again" };
    if (silent) return broken(`no data for ${SILENCE_LIMIT_MS / 1000} s`);
    const failure = ConnectError.from(error);
    return failure.code === Code.Unauthenticated ? { kind: "locked", why: failure.findDetails(ErrorInfoSchema)[0]?.reason ?? "" } : broken(textOf(failure));
  } finally {
    clearTimeout(watchdog);
    signal.removeEventListener("abort", stop);
    wake.removeEventListener("again", beginAgain);
    attempt.abort();
  }
}

function textOf(error: ConnectError): string {
  // Browsers report only that fetch failed.
  if (error.code === Code.Unknown && error.cause instanceof TypeError) return "server not responding";
  return `${Code[error.code]}: ${error.rawMessage}`;
}

// Ends early if the browser is online again, on `again`, and on the signal.
function pause(ms: number, signal: AbortSignal, wake: Wake): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      globalThis.removeEventListener("online", done);
      wake.removeEventListener("again", done);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    globalThis.addEventListener("online", done);
    wake.addEventListener("again", done);
    signal.addEventListener("abort", done);
  });
}
