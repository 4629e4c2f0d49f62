// Opens the stream in this tab: through the shared worker, or directly if the browser supports no shared
// worker.
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { keepOpen, Wake } from "./link";
import type { Event, Listener } from "./link";

// The open stream of a tab.
export interface Feed {
  readonly close: () => void;
  // The identity has changed: the stream is reopened for all tabs.
  readonly again: () => void;
}

export type Open = (listener: Listener) => Feed;

export const openFeed: Open = (listener) => {
  if (typeof SharedWorker === "undefined") return openOwn(listener);
  let closed = false;
  const worker = new SharedWorker(new URL("./worker.ts", import.meta.url), { type: "module", name: "damper" });
  worker.onerror = () => {
    if (!closed) feed = openOwn(listener);
  };
  worker.port.onmessage = ({ data }: MessageEvent<Event>) => { listener(data); };
  let feed: Feed = {
    close: () => { worker.port.postMessage("bye"); },
    again: () => { worker.port.postMessage("again"); },
  };
  return {
    close: () => {
      closed = true;
      feed.close();
    },
    again: () => { feed.again(); },
  };
};

function openOwn(listener: Listener): Feed {
  const end = new AbortController();
  const wake = new Wake();
  void keepOpen(createGrpcWebTransport({ baseUrl: location.origin }), listener, end.signal, wake);
  return { close: () => { end.abort(); }, again: () => { wake.again(); } };
}
