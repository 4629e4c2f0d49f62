// An etcd per test that can be paused: it keeps its connections and does not answer.
//
// DAMPER_TEST_ETCD is the program, by default etcd.
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { freePort } from "./server";

export class Etcd {
  readonly store: string;
  readonly #process: ChildProcess;
  readonly #folder: string;

  private constructor(store: string, process: ChildProcess, folder: string) {
    this.store = store;
    this.#process = process;
    this.#folder = folder;
  }

  static async start(): Promise<Etcd> {
    const folder = await mkdtemp(join(tmpdir(), "damper-page-etcd-"));
    const [clients, peers] = [await freePort(), await freePort()].map((port) => `127.0.0.1:${String(port)}`) as [string, string];
    const member = spawn(process.env["DAMPER_TEST_ETCD"] ?? "etcd", ["--data-dir", folder, "--name", "one",
      "--listen-client-urls", `http://${clients}`, "--advertise-client-urls", `http://${clients}`,
      "--listen-peer-urls", `http://${peers}`, "--initial-advertise-peer-urls", `http://${peers}`, "--initial-cluster", `one=http://${peers}`],
    { stdio: ["ignore", "ignore", "pipe"] });
    await new Promise<void>((ready, failed) => {
      createInterface(member.stderr).on("line", (line) => { if (line.includes("ready to serve client requests")) ready(); });
      member.once("error", failed);
      member.once("exit", () => { failed(new Error("etcd ended")); });
    });
    return new Etcd(`etcd://${clients}/damper`, member, folder);
  }

  standStill(): void {
    this.#process.kill("SIGSTOP");
  }

  goOn(): void {
    this.#process.kill("SIGCONT");
  }

  async end(): Promise<void> {
    const gone = once(this.#process, "exit");
    this.#process.kill("SIGKILL");
    await gone;
    await rm(this.#folder, { recursive: true, force: true });
  }
}
