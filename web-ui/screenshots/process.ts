// A process of the real binary, identified by the address that it prints.
//
// DAMPER_BINARY is the binary.
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

export interface Started {
  // `http://127.0.0.1:PORT`
  readonly url: string;
  readonly end: () => Promise<void>;
}

// Waits for the line with its address. Later output is read and dropped, because a full pipe would block the
// process.
export async function started(...args: readonly string[]): Promise<Started> {
  const binary = process.env["DAMPER_BINARY"];
  if (!binary) throw new Error("set DAMPER_BINARY to the damper binary");
  const child = spawn(binary, args, { stdio: ["ignore", "pipe", "pipe"] });
  const address = await new Promise<string>((listening, failed) => {
    const output: string[] = [];
    for (const stream of [child.stdout, child.stderr]) {
      createInterface(stream).on("line", (line) => {
        output.push(line);
        const found = /(?:listening on |http:\/\/)([\d.]+:\d+)/.exec(line)?.[1];
        if (found !== undefined) listening(found);
      });
    }
    child.once("error", failed);
    child.once("exit", () => { failed(new Error(`damper ${args.join(" ")} ended: ${output.join("\n")}`)); });
  });
  return { url: `http://${address}`, end: () => ended(child) };
}

// Runs a command of the binary to its end.
export async function ran(...args: readonly string[]): Promise<void> {
  const child = spawn(process.env["DAMPER_BINARY"] ?? "damper", args, { stdio: ["ignore", "ignore", "inherit"] });
  const [code] = (await once(child, "exit")) as [number | null];
  if (code !== 0) throw new Error(`damper ${args.join(" ")} ended with ${String(code)}`);
}

async function ended(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const gone = once(child, "exit");
  child.kill("SIGKILL");
  await gone;
}
