// A control plane per test: the real binary with its own port and store, which the test kills and starts
// again.
//
// DAMPER_BINARY is the binary.
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

export class Served {
  readonly port: number;
  readonly #folder: string;
  readonly #store: string;
  readonly #options: readonly string[];
  #process: ChildProcess | undefined;

  private constructor(port: number, folder: string, store: string, options: readonly string[]) {
    this.port = port;
    this.#folder = folder;
    this.#store = store;
    this.#options = options;
  }

  // On an empty store, unless one is given.
  static async start(store?: string, options: readonly string[] = []): Promise<Served> {
    const folder = await mkdtemp(join(tmpdir(), "damper-page-"));
    const served = new Served(await freePort(), folder, store ?? `sled:${join(folder, "store")}`, options);
    await served.start();
    return served;
  }

  get url(): string {
    return `http://127.0.0.1:${String(this.port)}`;
  }

  // On the same port and store; returns once it listens.
  async start(): Promise<void> {
    const binary = process.env["DAMPER_BINARY"];
    if (!binary) throw new Error("set DAMPER_BINARY to the damper binary");
    const child = spawn(binary, ["serve", "--listen", `127.0.0.1:${String(this.port)}`, "--store", this.#store, ...this.#options], {
      stdio: ["ignore", "ignore", "pipe"],
    });
    this.#process = child;
    const output: string[] = [];
    const lines = createInterface(child.stderr);
    await new Promise<void>((listening, failed) => {
      lines.on("line", (line) => {
        output.push(line);
        if (line.includes("listening on ")) listening();
      });
      child.once("error", failed);
      child.once("exit", () => { failed(new Error(`damper serve ended: ${output.join("\n")}`)); });
    });
  }

  // Killed, as by a crash.
  async kill(): Promise<void> {
    const child = this.#process;
    if (child === undefined) return;
    this.#process = undefined;
    const gone = once(child, "exit");
    child.kill("SIGKILL");
    await gone;
  }

  async end(): Promise<void> {
    await this.kill();
    await rm(this.#folder, { recursive: true, force: true });
  }
}

export async function freePort(): Promise<number> {
  const probe = createServer();
  probe.listen(0, "127.0.0.1");
  await once(probe, "listening");
  const { port } = probe.address() as AddressInfo;
  probe.close();
  await once(probe, "close");
  return port;
}
