// Brings the stream into this tab: through the shared worker, or by a stream of its own where the browser
// has no shared workers or refuses this one.
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { keepOpen } from "./link";
import type { Event, Listener } from "./link";

export type Open = (listener: Listener) => () => void;

export const openFeed: Open = (listener) => {
  if (typeof SharedWorker === "undefined") return openOwn(listener);
  let close = () => {};
  let closed = false;
  const worker = new SharedWorker(new URL("./worker.ts", import.meta.url), { type: "module", name: "damper" });
  worker.onerror = () => {
    if (!closed) close = openOwn(listener);
  };
  worker.port.onmessage = ({ data }: MessageEvent<Event>) => { listener(data); };
  close = () => { worker.port.postMessage("bye"); };
  return () => {
    closed = true;
    close();
  };
};

function openOwn(listener: Listener): () => void {
  const end = new AbortController();
  void keepOpen(createGrpcWebTransport({ baseUrl: location.origin }), listener, end.signal);
  return () => { end.abort(); };
}
