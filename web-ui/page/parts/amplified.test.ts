import { create } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { AmplificationSchema } from "$wire/rules_pb";
import { expect, test } from "vitest";
import { amplified } from "./amplified";

const amplification = (fields: MessageInitShape<typeof AmplificationSchema>) => create(AmplificationSchema, fields);
const bound = (maxAttempts: number, steadyAttemptsPerCall: number, freeRetriesPerWindow = 0) =>
  ({ bound: { maxAttempts, steadyAttemptsPerCall, freeRetriesPerWindow, window: { seconds: 10n } } });
const chain = (sends: bigint, ...services: string[]) =>
  ({ chain: { sends, hops: services.slice(1).map((calleeService, at) => ({ callerService: services[at] ?? "", calleeService })) } });

const asText = (before: MessageInitShape<typeof AmplificationSchema>, after: MessageInitShape<typeof AmplificationSchema>) =>
  amplified(amplification(before), amplification(after)).map((line) => `${line.isUp ? "up" : "down"}: ${line.what} ${line.before} → ${line.after} ${line.unit}`);

test("unchanged values are not listed", () => {
  const same = { ...bound(3, 1.1, 3), ...chain(4n, "shop", "cart") };
  expect(asText(same, same)).toEqual([]);
  expect(amplified(undefined, undefined)).toEqual([]);
});

test("attempts of the hop and sustained maximum, before and after", () => {
  expect(asText(bound(2, 1.1, 3), bound(4, 1.2, 3))).toEqual([
    "up: Attempts on this hop at most 2 → 4 per call",
    "up: Sustained 1.1 → 1.2 (plus 3 free retries per process in 10 s) per call",
  ]);
  expect(asText(bound(4, 1.25), bound(1, 1))).toEqual([
    "down: Attempts on this hop at most 4 → 1 per call",
    "down: Sustained 1.25 → 1 per call",
  ]);
});

test("without a retry breaker nothing bounds the long run below the attempts", () => {
  expect(asText(bound(3, 1.1), bound(3, 0))).toEqual(["up: Sustained 1.1 → 3 per call"]);
});

test("both sides name the free retries if only they change", () => {
  expect(asText(bound(3, 1.1, 0), bound(3, 1.1, 5))).toEqual([
    "up: Sustained 1.1 (plus no free retries) → 1.1 (plus 5 free retries per process in 10 s) per call",
  ]);
});

test("the worst chain is named, and both if it becomes another", () => {
  const before = { ...bound(3, 1.1), ...chain(4n, "shop", "cart", "stock") };
  expect(asText(before, { ...bound(3, 1.1), ...chain(16n, "shop", "cart", "stock") })).toEqual([
    "up: Attempts along shop → cart → stock at most 4 → 16 per request",
  ]);
  expect(asText(before, { ...bound(3, 1.1), ...chain(3n, "web", "cart") })).toEqual([
    "down: Attempts along a chain at most 4 (shop → cart → stock) → 3 (web → cart) per request",
  ]);
});
