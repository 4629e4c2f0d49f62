// One stream for all tabs, in a shared worker.
//
// Over HTTP/1.1 a browser opens six connections per origin: with a stream per tab, the seventh tab has none.
// A tab that opens later first receives the whole state.
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import type { Event } from "./link";
import { keepOpen, Wake } from "./link";
import type { Fleet } from "./state";
import { asReset, fold } from "./state";

// A tab sends "bye" when it closes, because a port has no close event, and "again" for another identity.

interface PortEvent extends globalThis.Event {
  readonly ports: readonly MessagePort[];
}

const tabs = new Set<MessagePort>();
let fleet: Fleet | undefined;
// The last event, if there is no stream.
let absent: Event | undefined;
const wake = new Wake();
let stream: AbortController | undefined;

addEventListener("connect", (event) => {
  const tab = (event as PortEvent).ports[0];
  if (tab === undefined) return;
  tab.onmessage = ({ data }) => {
    if (data === "bye") leave(tab);
    if (data === "again") wake.again();
  };
  tabs.add(tab);
  if (stream === undefined) open();
  else greet(tab);
});

function open(): void {
  stream = new AbortController();
  const transport = createGrpcWebTransport({ baseUrl: location.origin });
  void keepOpen(transport, relay, stream.signal, wake);
}

function greet(tab: MessagePort): void {
  if (fleet !== undefined) tab.postMessage({ kind: "message", message: asReset(fleet) } satisfies Event);
  if (absent !== undefined) tab.postMessage(absent);
}

function relay(event: Event): void {
  if (event.kind === "message") fleet = fold(fleet, event.message);
  if (event.kind === "locked") fleet = undefined;
  absent = event.kind === "message" ? undefined : event;
  for (const tab of tabs) tab.postMessage(event);
}

// The last tab closes the stream and clears the state.
function leave(tab: MessagePort): void {
  tabs.delete(tab);
  if (tabs.size > 0) return;
  stream?.abort();
  stream = undefined;
  fleet = undefined;
  absent = undefined;
}
