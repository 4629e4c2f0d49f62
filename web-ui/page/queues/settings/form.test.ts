// The form of a queue against the table of its settings, and there and back.
import { create, equals } from "@bufbuild/protobuf";
import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { Code, Mode } from "$wire/policy_pb";
import { OnStop, QueueSchema } from "$wire/queues_pb";
import { allFields, meaningOfEmpty } from "../../resources/rules/form";
import { draftOf, queueOf, rowsOf, SECTIONS } from "./form";

// Made by `settings_reference queue` from the engine's constants: field, default, range.
const table = readFileSync("../docs/policy.md", "utf8").split("<!-- queue: made by cargo xtask docs -->")[1]?.split("<!-- end -->")[0] ?? "";
const documented = new Map([...table.matchAll(/^\| `([\w.]+)` \| (.*?) \| (.*?) \|/gm)].map(([, path = "", usual = "", range = ""]) => [path, { usual, range }]));
const form = new Map(SECTIONS.flatMap((section) => [...allFields(section), ...(section.variants ? [section.variants] : []), ...(section.path === "" ? [] : [section])])
  .map((one) => [one.path, one.help]));

// Both as numbers with units: "1 KiB to 768 KiB" and "1024 to 786432" are equal, so are "7 days" and "7d".
function figures(text: string): number[] {
  const units: Record<string, number> = { ms: 1e-3, s: 1, h: 3600, d: 86_400, day: 86_400, days: 86_400, m: 60, KiB: 1024, MiB: 1024 ** 2, GiB: 1024 ** 3, TiB: 1024 ** 4 };
  const all = [...text.matchAll(/(\d+(?:\.\d+)?)\s?(ms|s|m|h|d|days?|[KMGT]iB)?\b/g)].map(([, count, unit]) => Number(count) * (units[unit ?? ""] ?? 1));
  return all;
}

test("the form has every setting of the table", () => {
  expect(documented.size).toBeGreaterThan(20);
  for (const path of documented.keys()) if (path !== "name" && path !== "paused") expect(form.has(path), path).toBe(true);
});

test("ranges and defaults of the help are those of the table", () => {
  for (const [path, { usual, range }] of documented) {
    const help = form.get(path);
    if (help === undefined || !/ to /.test(range) || path === "metadata") continue;
    const bounds = /(\S+) to (.+)/.exec(range);
    const [least, most] = [figures(bounds?.[1] ?? ""), figures(bounds?.[2] ?? "")].map((numbers) => numbers.reduce((sum, each) => sum + each, 0));
    const named = figures(help);
    expect(named, `${path}: ${help}`).toContain(least);
    expect(named, `${path}: ${help}`).toContain(most);
    if (usual !== "none") expect(named, `${path}: ${help}`).toContain(figures(usual)[0]);
    else expect(help).toMatch(/empty: no limit/);
  }
});

const full = create(QueueSchema, {
  name: "stock-later", owner: "team-orders", workers: ["orders", "stock-*"], submitters: ["orders"], methods: ["stock shop.v1.Stock/Take", "mailer *"], metadata: ["traceparent", "x-tenant"],
  policy: {
    mode: Mode.ENFORCE,
    retry: { maxAttempts: 20, perAttemptTimeout: { seconds: 30n }, maxDuration: { seconds: 86_400n }, codes: { kind: { case: "allow", value: { codes: [Code.UNAVAILABLE] } } },
      backoff: { kind: { case: "exponential", value: { base: { seconds: 1n }, max: { seconds: 3600n } } } } },
    stopWhen: { successRateBelow: 50, minSamples: 20 },
  },
  maxInFlight: 10, rate: 2.5, expiresAfter: { seconds: 3600n }, lease: { seconds: 60n }, maxLost: 3, holdAfter: 7, onStop: OnStop.DEAD, keepDone: { seconds: 0n }, keepDead: { seconds: 86_400n },
  maxJobs: 1000, maxBytes: 3n * 1024n ** 3n, maxBodyBytes: 65_537, maxSubmitterShare: 0.25, paused: "INC-1",
});

test("a queue survives the form there and back, its pause included", () => {
  const { written, faults } = queueOf(draftOf(full), full.name, full);
  expect([...faults]).toEqual([]);
  expect(written && equals(QueueSchema, written, full)).toBe(true);
});

test("sizes are entered with units, lists with commas", () => {
  const draft = { ...draftOf(full), max_bytes: "512 MiB", workers: " a,, b-* ," };
  expect(queueOf(draft, "q", undefined).written).toMatchObject({ maxBytes: 512n * 1024n ** 2n, workers: ["a", "b-*"] });
  expect(queueOf({ ...draft, max_bytes: "1.5 GB" }, "q", undefined).faults.get("max_bytes")).toContain("is not a size such as 256 KiB or 1 GiB");
});

test("a stop condition that is off has no other settings", () => {
  const draft = Object.fromEntries(Object.entries(draftOf(full)).filter(([path]) => path !== "policy.stop_when"));
  expect(queueOf(draft, "q", full).written?.policy?.stopWhen).toBeUndefined();
  const rows = rowsOf(create(QueueSchema, { name: "q" }));
  expect(rows.find(({ path }) => path === "policy.stop_when")?.value).toBe("off");
  expect(rows.some(({ path }) => path === "on_stop")).toBe(false);
});

test("an empty field shows what it means", () => {
  expect(meaningOfEmpty({ help: form.get("workers") ?? "" })).toBe("the service that submitted");
  expect(meaningOfEmpty({ help: form.get("max_bytes") ?? "" })).toBe("default 1 GiB");
});
