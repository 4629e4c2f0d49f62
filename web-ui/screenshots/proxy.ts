// A proxy between browser and server: it can block responses, and can be closed as if the server were gone.
// Each has its own address, so that pictures share no worker and no cookie.
//
// DAMPER_PAGE_URL names a `npx vite` that serves the web UI instead of the binary.
import { once } from "node:events";
import { createServer, request } from "node:http";
import type { IncomingMessage, Server, ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";

const ASKS_THE_SERVER = /^\/(damper\.v1\.|session$)/;

export class BlockingProxy {
  // Requests with a matching path get no response.
  held: RegExp | undefined;
  readonly #to: string;
  readonly #server: Server;
  readonly #open = new Set<Socket>();

  private constructor(to: string) {
    this.#to = to;
    this.#server = createServer((asked, answer) => { this.#pass(asked, answer); });
    this.#server.on("connection", (socket) => {
      this.#open.add(socket);
      socket.on("close", () => this.#open.delete(socket));
    });
  }

  static async to(url: string): Promise<BlockingProxy> {
    const proxy = new BlockingProxy(url);
    proxy.#server.listen(0, "127.0.0.1");
    await once(proxy.#server, "listening");
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${String((this.#server.address() as AddressInfo).port)}`;
  }

  // As if the server were gone: closes open connections and rejects new ones.
  async shut(): Promise<void> {
    if (!this.#server.listening) return;
    const closed = once(this.#server, "close");
    this.#server.close();
    for (const socket of this.#open) socket.destroy();
    await closed;
  }

  #pass(asked: IncomingMessage, answer: ServerResponse): void {
    const path = asked.url ?? "/";
    if (this.held?.test(path)) return;
    const to = ASKS_THE_SERVER.test(path) ? this.#to : (process.env["DAMPER_PAGE_URL"] ?? this.#to);
    const { method, headers } = asked;
    const onward = request(new URL(path, to), { ...(method !== undefined && { method }), headers }, (answered) => {
      answer.writeHead(answered.statusCode ?? 502, answered.headers);
      // A stream may start without data, so its headers are sent at once.
      answer.flushHeaders();
      answered.pipe(answer);
    });
    onward.on("error", () => { answer.destroy(); });
    answer.on("close", () => { onward.destroy(); });
    asked.pipe(onward);
  }
}
