// One stream for all tabs.
//
// Over HTTP/1.1 a browser opens six connections per origin: a stream per tab would leave none for the
// seventh. A tab that joins late is told everything first. Messages are plain objects and cross as they are.
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import type { Event } from "./link";
import { keepOpen } from "./link";
import type { Fleet } from "./state";
import { asReset, fold } from "./state";

// A tab says "bye" when it goes; a port does not tell by itself.

interface PortEvent extends globalThis.Event {
  readonly ports: readonly MessagePort[];
}

const tabs = new Set<MessagePort>();
let fleet: Fleet | undefined;
let down: Event | undefined;
let stream: AbortController | undefined;

addEventListener("connect", (event) => {
  const tab = (event as PortEvent).ports[0];
  if (tab === undefined) return;
  tab.onmessage = ({ data }) => {
    if (data === "bye") leave(tab);
  };
  tabs.add(tab);
  if (stream === undefined) open();
  else greet(tab);
});

function open(): void {
  stream = new AbortController();
  const transport = createGrpcWebTransport({ baseUrl: location.origin });
  void keepOpen(transport, relay, stream.signal);
}

function greet(tab: MessagePort): void {
  if (fleet !== undefined) tab.postMessage({ kind: "message", message: asReset(fleet) } satisfies Event);
  if (down !== undefined) tab.postMessage(down);
}

function relay(event: Event): void {
  if (event.kind === "message") fleet = fold(fleet, event.message);
  down = event.kind === "down" ? event : undefined;
  for (const tab of tabs) tab.postMessage(event);
}

// The last one closes the stream: what the worker knows would only grow old.
function leave(tab: MessagePort): void {
  tabs.delete(tab);
  if (tabs.size > 0) return;
  stream?.abort();
  stream = undefined;
  fleet = undefined;
  down = undefined;
}
