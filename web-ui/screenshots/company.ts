// A company of many services on one server: thousands of routes, ten thousand rules, guards, weeks of
// changes, and some clients with problems.
//
// Services and calls are those of the unit tests (`page/testing/many_services.ts`), from a seed. The clients
// are scripted over the real protocol.
import { createClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Client, silent } from "../e2e/own/client";
import type { Answer, Properties } from "../e2e/own/client";
import { Source } from "../gen/damper/v1/distribution_pb";
import { Mode } from "../gen/damper/v1/policy_pb";
import { Rules } from "../gen/damper/v1/rules_pb";
import { ran } from "./process";
import { edges, manifests } from "./table";
import { Traffic } from "./traffic";

const INSTANCES = 2;
// Reports as a watched route needs them: with fewer, its charts would fall to 0 between two reports.
const REPORT_EVERY_MS = 1_000;

export interface Company {
  readonly end: () => void;
}

// Writes rules and connects clients; the first reports follow.
export async function founded(url: string): Promise<Company> {
  await written(url);
  await changed(url);
  const processes = [...new Set(edges.map(({ callerService }) => callerService))].flatMap((service) =>
    Array.from({ length: INSTANCES }, (_, at) => ({ service, at, traffic: new Traffic(service, at, INSTANCES, oddities(service, at).properties?.overrideMode) })));
  const clients = processes.map(({ service, at }, place) => {
    const identity = { service, cluster: "default", instance: `${service}-6f7d-${(place * 7919).toString(36).padStart(4, "0")}` };
    const { properties, answer } = oddities(service, at);
    return new Client(url, identity, { serves: true, ...properties }, answer);
  });
  const report = () => {
    processes.forEach(({ service, at, traffic }, place) => {
      const { source = Source.LIVE, overrideMode = Mode.UNSPECIFIED } = oddities(service, at).properties ?? {};
      clients[place]?.report({ ...traffic.report(Date.now()), source, overrideMode });
    });
  };
  report();
  const beat = setInterval(report, REPORT_EVERY_MS);
  return {
    end: () => {
      clearInterval(beat);
      for (const client of clients) client.end();
    },
  };
}

// Rules and guards as a team writes them: from files, with the command line.
async function written(url: string): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), "damper-company-"));
  const file = join(folder, "table.yaml");
  await writeFile(file, manifests().map((one) => JSON.stringify(one)).join("\n---\n"));
  await ran("--server", url, "apply", "-f", file, "--force", "--author", "ci@deploy", "--reason", "All rules and guards, from the repository");
  await rm(folder, { recursive: true });
}

// Clients with problems.
function oddities(service: string, at: number): { properties?: Properties; answer?: Answer } {
  if (at > 0) return {};
  switch (service) {
    case "payments":
      return { answer: refusing };
    case "search":
      return { properties: { source: Source.LAST_KNOWN_GOOD }, answer: silent };
    case "basket":
      return { properties: { overrideMode: Mode.OBSERVE } };
    default:
      return {};
  }
}

// Rejects the first rule that it receives.
const refusing: Answer = ({ kind }) => {
  const rule = kind.case === "snapshot" ? kind.value.rules[0] : undefined;
  return rule?.key === undefined ? [] : [{ key: rule.key, revision: rule.revision, reason: "policy.retry.backoff.exponential.max: 250 ms is more than 200 ms, this build's limit" }];
};

// Changes after the first import.
async function changed(url: string): Promise<void> {
  const rules = createClient(Rules, createGrpcWebTransport({ baseUrl: url }));
  const people = ["ann", "ben", "chidi", "dana"];
  const reasons = ["Fewer retries while the ledger is slow", "Observe first", "Reviewed with the callee's owners", "INC-2041: calm the callers down",
    "Back to what it was before the incident", "One attempt less at the edge"];
  const some = edges.filter(({ routesWithoutRule }) => routesWithoutRule === 0).slice(0, 9);
  for (const [at, { callerService, calleeService }] of some.entries()) {
    const key = { callerService, callerCluster: "*", calleeService, calleeMethod: "*" };
    const before = await rules.getRule({ key });
    if (before.policy?.retry === undefined) continue;
    before.policy.mode = at % 5 === 4 ? Mode.OBSERVE : Mode.ENFORCE;
    before.policy.retry.maxAttempts = before.policy.retry.maxAttempts === 2 ? 3 : 2;
    const options = { author: people[at % people.length] ?? "", reason: reasons[at % reasons.length] ?? "", force: true };
    await rules.putRule({ rule: { key, policy: before.policy, owner: before.owner }, options });
  }
}
