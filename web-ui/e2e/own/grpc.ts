// gRPC over one HTTP/2 connection of Node, for scripted clients and workers.
//
// The package connect-node needs a newer Node.
import type { Transport } from "@connectrpc/connect";
import type { UniversalClientFn } from "@connectrpc/connect/protocol";
import { createTransport } from "@connectrpc/connect/protocol-grpc";
import type { ClientHttp2Session, IncomingHttpHeaders } from "node:http2";

export function transportOver(session: ClientHttp2Session): Transport {
  return createTransport({
    httpClient: over(session),
    baseUrl: "http://damper", useBinaryFormat: true, interceptors: [], acceptCompression: [], sendCompression: null,
    compressMinBytes: 1024, readMaxBytes: 0xffffffff, writeMaxBytes: 0xffffffff,
  });
}

// A queue of messages to send.
export class Outbox<Message> implements AsyncIterable<Message> {
  readonly #messages: Message[] = [];
  #ended = false;
  #wake = () => {};

  put(message: Message): void {
    this.#messages.push(message);
    this.#wake();
  }

  end(): void {
    this.#ended = true;
    this.#wake();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Message> {
    while (!this.#ended) {
      yield* this.#messages.splice(0);
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
        if (this.#messages.length > 0 || this.#ended) resolve();
      });
    }
  }
}

function over(session: ClientHttp2Session): UniversalClientFn {
  return async ({ url, method, header, body = [] }) => {
    const stream = session.request({ ":path": new URL(url).pathname, ":method": method, ...Object.fromEntries(header) });
    void (async () => {
      for await (const bytes of body) stream.write(bytes);
      stream.end();
    })().catch(() => { stream.close(); });
    const trailer = new Headers();
    stream.on("trailers", (fields) => { copy(fields, trailer); });
    const head = await new Promise<IncomingHttpHeaders>((resolve, reject) => {
      stream.on("response", resolve);
      stream.on("error", reject);
    });
    const answered = new Headers();
    copy(head, answered);
    return { status: Number(head[":status"]), header: answered, body: stream as AsyncIterable<Uint8Array>, trailer };
  };
}

function copy(from: IncomingHttpHeaders, to: Headers): void {
  for (const [name, value] of Object.entries(from)) {
    if (!name.startsWith(":") && typeof value === "string") to.set(name, value);
  }
}
