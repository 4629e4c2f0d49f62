// The servers of the pictures, all real: a demo with ordinary traffic, one in which a kill switch is in force, a
// large company, one that nobody has used yet, and one that
// asks for tokens. Where DAMPER_SCREENSHOTS says where such servers run already, none are started.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { founded } from "./company";
import { ran, started } from "./started";
import type { Started } from "./started";

export type Kind = "demo" | "stopped" | "large" | "empty" | "guarded";

const VARIABLE = "DAMPER_SCREENSHOTS";

export function urlOf(kind: Kind): string {
  const urls = JSON.parse(process.env[VARIABLE] ?? "{}") as Partial<Record<Kind, string>>;
  const url = urls[kind];
  if (url === undefined) throw new Error(`${VARIABLE} does not say where the ${kind} server is`);
  return url;
}

// Playwright calls what this returns when all pictures are taken.
export default async function setup(): Promise<() => Promise<void>> {
  if (process.env[VARIABLE]) return () => Promise.resolve();
  const folder = await mkdtemp(join(tmpdir(), "damper-screenshots-"));
  const demo = () => started("demo", "--playground", "--listen", "127.0.0.1:0", "--control", "127.0.0.1:0");
  const serve = (name: string, ...more: readonly string[]) =>
    started("serve", "--listen", "127.0.0.1:0", "--store", `sled:${join(folder, name)}`, "--log-level", "info", ...more);
  const servers: Record<Kind, Started> = {
    demo: await demo(),
    stopped: await demo(),
    large: await serve("large"),
    empty: await serve("empty"),
    guarded: await serve("guarded", "--auth", "tokens", "--bootstrap-token-file", join(folder, "first-token")),
  };
  await ran("--server", servers.stopped.url, "kill", "--callee", "inventory", "--author", "ann", "--reason", "INC-2041: inventory restarts under load");
  const company = await founded(servers.large.url);
  process.env[VARIABLE] = JSON.stringify(Object.fromEntries(Object.entries(servers).map(([kind, { url }]) => [kind, url])));
  return async () => {
    company.end();
    await Promise.all(Object.values(servers).map(({ end }) => end()));
    await rm(folder, { recursive: true });
  };
}
