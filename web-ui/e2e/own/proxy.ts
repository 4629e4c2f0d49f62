// A proxy between browser and server that can stall the connection.
import { connect, createServer } from "node:net";
import type { AddressInfo, Server, Socket } from "node:net";
import { once } from "node:events";

export class Wire {
  readonly #server: Server;
  readonly #ends = new Set<Socket>();
  // Its other end was closed meanwhile.
  readonly #left = new Set<Socket>();
  #held = false;

  private constructor(server: Server) {
    this.#server = server;
  }

  static async to(port: number): Promise<Wire> {
    const server = createServer();
    const wire = new Wire(server);
    server.on("connection", (near) => { wire.#join(near, connect(port, "127.0.0.1")); });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    return wire;
  }

  get url(): string {
    return `http://127.0.0.1:${String((this.#server.address() as AddressInfo).port)}`;
  }

  // Stalls: nothing passes and nothing ends.
  hold(): void {
    this.#held = true;
    for (const end of this.#ends) end.pause();
  }

  // Delivers the delayed bytes and resumes.
  release(): void {
    this.#held = false;
    for (const end of this.#ends) end.resume();
    for (const end of this.#left) end.destroy();
    this.#left.clear();
  }

  async end(): Promise<void> {
    for (const end of this.#ends) end.destroy();
    this.#server.close();
    await once(this.#server, "close");
  }

  #join(near: Socket, far: Socket): void {
    for (const [from, to] of [[near, far], [far, near]] as const) {
      this.#ends.add(from);
      from.on("data", (bytes) => { to.write(bytes); });
      // A close event follows.
      from.on("error", () => undefined);
      from.on("close", () => {
        this.#ends.delete(from);
        if (this.#held) this.#left.add(to);
        else to.destroy();
      });
      if (this.#held) from.pause();
    }
  }
}
