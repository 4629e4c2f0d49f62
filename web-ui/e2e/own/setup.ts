// Tests with a server of their own: empty at first, killed and restarted by the test, with scripted clients.
// They share nothing, so they run concurrently.
import { createClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { expect, test as base } from "@playwright/test";
import type { Locator, Page } from "@playwright/test";
import { Fleet } from "../../gen/damper/v1/fleet_pb";
import { Guards } from "../../gen/damper/v1/guards_pb";
import { History } from "../../gen/damper/v1/history_pb";
import { Jobs } from "../../gen/damper/v1/jobs_pb";
import { Kills } from "../../gen/damper/v1/kills_pb";
import { Queues } from "../../gen/damper/v1/queues_pb";
import { Rules } from "../../gen/damper/v1/rules_pb";
import { heed } from "../browser_errors";
import { Client } from "./client";
import type { Answer, Properties } from "./client";
import { Served } from "./server";
import { Worker } from "./worker";
import type { Handler } from "./worker";

export { expect };

export function apiOf(url: string) {
  const transport = createGrpcWebTransport({ baseUrl: url });
  return {
    rules: createClient(Rules, transport), guards: createClient(Guards, transport), kills: createClient(Kills, transport),
    fleet: createClient(Fleet, transport), history: createClient(History, transport), queues: createClient(Queues, transport), jobs: createClient(Jobs, transport),
  };
}

interface World {
  served: Served;
  api: ReturnType<typeof apiOf>;
  // Connects a client.
  connect: (service: string, properties?: Properties, answer?: Answer) => Client;
  // Connects a worker of a queue.
  work: (service: string, queue: string, handler: Handler) => Worker;
  quiet: undefined;
}

interface Options {
  // Browser errors that the test expects.
  expected: RegExp | undefined;
  // Further options of the server, separated by spaces.
  serve: string;
}

export const test = base.extend<World & Options>({
  expected: [undefined, { option: true }],
  serve: ["", { option: true }],
  served: async ({ serve }, use) => {
    const served = await Served.start(undefined, serve === "" ? [] : serve.split(" "));
    await use(served);
    await served.end();
  },
  baseURL: async ({ served }, use) => { await use(served.url); },
  api: async ({ served }, use) => { await use(apiOf(served.url)); },
  connect: async ({ served }, use) => {
    const clients: Client[] = [];
    await use((service, properties, answer) => {
      const identity = { service, cluster: "default", instance: `${service}-${String(clients.length + 1)}` };
      const client = new Client(served.url, identity, properties, answer);
      clients.push(client);
      return client;
    });
    for (const client of clients) client.end();
  },
  work: async ({ served }, use) => {
    const workers: Worker[] = [];
    await use((service, queue, handler) => {
      const worker = new Worker(served.url, `${service}-${String(workers.length + 1)}`, service, queue, handler);
      workers.push(worker);
      return worker;
    });
    for (const worker of workers) worker.end();
  },
  quiet: [
    async ({ context, served, expected }, use) => {
      const complain = heed(context, served.url, expected);
      await use(undefined);
      complain();
    },
    { auto: true },
  ],
});

export async function live(page: Page, path: string): Promise<void> {
  await page.goto(path);
  await expect(page.getByTestId("liveness")).toContainText("live");
}

export const KEY = { callerService: "gateway", callerCluster: "default", calleeService: "orders", calleeMethod: "shop.v1.Orders/Place" };

export function at(page: "/rule" | "/route" | "/guard", key: typeof KEY = KEY): string {
  const { callerService: caller, callerCluster: cluster, calleeService: callee, calleeMethod: method } = key;
  return `${page}?${new URLSearchParams({ caller, cluster, callee, method }).toString()}`;
}

export function setting(page: Page, path: string) {
  return page.locator(`[data-field="${path}"]`).locator("input:not([type=checkbox]), select, textarea").first();
}

// Name and reason, required without tokens.
export async function say(within: Page | Locator, reason = "a browser test"): Promise<void> {
  await within.getByLabel(/^Reason/).fill(reason);
  await within.getByLabel(/^Your name/).fill("playwright");
}
