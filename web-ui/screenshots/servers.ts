// The servers of the pictures, all real: a demo, a demo under a kill switch, a large company, an unused
// server, and one with tokens. DAMPER_SCREENSHOTS names running servers to use instead.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as after } from "node:timers/promises";
import { founded } from "./company";
import { ran, started } from "./process";

export type Kind = "demo" | "stopped" | "large" | "empty" | "guarded";

const VARIABLE = "DAMPER_SCREENSHOTS";
// Charts need some data first.
const GROWN_MS = 180_000;

export function urlOf(kind: Kind): string {
  const urls = JSON.parse(process.env[VARIABLE] ?? "{}") as Partial<Record<Kind, string>>;
  const url = urls[kind];
  if (url === undefined) throw new Error(`${VARIABLE} does not say where the ${kind} server is`);
  return url;
}

// Playwright calls the returned function after all pictures.
export default async function setup(): Promise<() => Promise<void>> {
  if (process.env[VARIABLE]) return () => Promise.resolve();
  const folder = await mkdtemp(join(tmpdir(), "damper-screenshots-"));
  const ends: (() => void | Promise<void>)[] = [() => rm(folder, { recursive: true })];
  const end = async () => {
    for (const each of ends.splice(0).reverse()) await each();
  };
  try {
    const urls = await begun(folder, ends);
    process.env[VARIABLE] = JSON.stringify(urls);
  } catch (thrown) {
    await end();
    throw thrown;
  }
  return end;
}

// Registers a process to be ended as soon as it is started.
async function begun(folder: string, ends: (() => void | Promise<void>)[]): Promise<Record<Kind, string>> {
  const start = async (...args: readonly string[]) => {
    const { url, end } = await started(...args);
    ends.push(end);
    return url;
  };
  const demo = () => start("demo", "--playground", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0");
  const serve = (name: string, ...more: readonly string[]) =>
    start("serve", "--listen", "127.0.0.1:0", "--store", `sled:${join(folder, name)}`, "--log-level", "info", ...more);
  const urls: Record<Kind, string> = {
    demo: await demo(),
    stopped: await demo(),
    large: await serve("large"),
    empty: await serve("empty"),
    guarded: await serve("guarded", "--auth", "tokens", "--bootstrap-token-file", join(folder, "first-token")),
  };
  await ran("--server", urls.stopped, "kill", "--callee", "inventory", "--author", "ann", "--reason", "INC-2041: inventory restarts under load");
  const company = await founded(urls.large);
  ends.push(company.end);
  await after(GROWN_MS);
  return urls;
}
