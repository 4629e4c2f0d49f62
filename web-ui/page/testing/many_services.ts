// A call graph of any size for tests and pictures; the same seed gives the same graph.
//
// Services stand in tiers: edges, products, shared services, stores. Each calls some of the tiers below, and
// some call back one tier, which makes cycles.
import { create } from "@bufbuild/protobuf";
import { EdgeSchema, GetChainResponseSchema } from "$wire/fleet_pb";
import type { Edge, GetChainResponse } from "$wire/fleet_pb";

const TIERS = [
  ["edge-web", "edge-mobile", "edge-partner", "batch-nightly"],
  ["checkout", "search", "catalog", "account", "basket", "reviews", "returns", "giftcards"],
  ["orders", "pricing", "payments", "shipping", "recommend", "inventory", "loyalty", "tax", "fraud", "notify"],
  ["stock", "ledger", "customers", "addresses", "media", "sessions", "audit", "templates"],
] as const;

export function manyServices(count: number, seed = 1, fails = ""): GetChainResponse {
  const next = random(seed);
  const tiers: string[][] = TIERS.map(() => []);
  for (let made = 0; made < count; made += 1) {
    const tier = made % TIERS.length;
    const number = Math.floor(made / TIERS.length);
    const names = TIERS[tier] ?? [];
    const round = Math.floor(number / names.length);
    tiers[tier]?.push((names[number % names.length] ?? "service") + (round === 0 ? "" : `-${round + 1}`));
  }
  const edges = new Map<string, Edge>();
  const call = (from: string | undefined, to: string | undefined) => {
    if (from === undefined || to === undefined || (from === to && from !== "audit")) return;
    edges.set(`${from} ${to}`, edge(from, to, next));
  };
  const one = (of: readonly string[] | undefined) => of?.[Math.floor(next() * of.length)];
  tiers.forEach((names, tier) => {
    for (const [at, name] of names.entries()) {
      // Every service has a caller.
      if (tier > 0) call(tiers[tier - 1]?.[at % (tiers[tier - 1]?.length ?? 1)], name);
      if (next() < 0.8) call(name, one(tiers[tier + 1]));
      if (next() < 0.25) call(name, one(tiers[tier + 2]));
    }
  });
  for (const [from, to] of [["orders", "notify"], ["notify", "account"], ["account", "orders"], ["audit", "audit"]]) {
    if (tiers.some((names) => names.includes(from ?? "")) && tiers.some((names) => names.includes(to ?? ""))) call(from, to);
  }
  const list = [...edges.values()];
  if (fails !== "") failAt(fails, list);
  return create(GetChainResponseSchema, { edges: list, ...worst(list), window: { seconds: 10n } });
}

// Makes most calls to a service fail, and as many calls to each service above it as it fails itself.
function failAt(service: string, edges: readonly Edge[]): void {
  for (const edge of edges) edge.errorShare = 0;
  const sum = (of: readonly Edge[], value: (edge: Edge) => number) => of.reduce((so, edge) => so + value(edge), 0);
  const hit = new Set([service]);
  for (const name of hit) {
    const arriving = edges.filter(({ calleeService }) => calleeService === name);
    const leaving = edges.filter(({ callerService }) => callerService === name);
    const share = sum(leaving, (edge) => edge.callsPerS * edge.errorShare) / sum(arriving, (edge) => edge.callsPerS);
    for (const edge of arriving) {
      edge.errorShare = name === service ? 0.6 : Math.min(share, 0.9);
      hit.add(edge.callerService);
    }
  }
}

function edge(from: string, to: string, next: () => number): Edge {
  const calls = 2 + next() * 400;
  const luck = next();
  const amplification = luck < 0.06 ? 1.6 + next() * 1.2 : luck < 0.25 ? 1.02 + next() * 0.3 : 1;
  const routes = 1 + Math.floor(next() * 3);
  return create(EdgeSchema, {
    callerService: from,
    calleeService: to,
    callsPerS: calls,
    attemptsPerS: calls * amplification,
    amplification,
    errorShare: amplification > 1.5 ? next() * 0.3 : next() * 0.002,
    routes,
    routesWithoutRule: next() < 0.12 ? routes : 0,
    maxAttempts: Math.max(1 + Math.floor(next() * 3), Math.ceil(amplification)),
    chainCoverage: next() < 0.1 ? 0.8 : 1,
  });
}

// The path with the highest amplification, each service at most once.
function worst(edges: readonly Edge[]) {
  let best: Edge[] = [];
  const product = (path: readonly Edge[]) => path.reduce((sum, { amplification }) => sum * amplification, 1);
  const go = (path: Edge[], seen: ReadonlySet<string>) => {
    if (product(path) > product(best) + 1e-9) best = path;
    if (path.length >= 5) return;
    for (const edge of edges) {
      if (edge.callerService === path.at(-1)?.calleeService && !seen.has(edge.calleeService)) {
        go([...path, edge], new Set([...seen, edge.calleeService]));
      }
    }
  };
  for (const edge of edges) if (edge.callerService !== edge.calleeService) go([edge], new Set([edge.callerService, edge.calleeService]));
  let sends = 1;
  const hops = best.map((edge) => {
    sends += edge.maxAttempts - 1;
    return { callerService: edge.callerService, calleeService: edge.calleeService, maxAttempts: edge.maxAttempts, sends: BigInt(sends) };
  });
  return {
    worstMeasured: { services: [best[0]?.callerService ?? "", ...best.map(({ calleeService }) => calleeService)], amplification: product(best) },
    worstPossible: { hops, sends: BigInt(sends), hasCircle: true },
  };
}

// Numerical Recipes' linear congruential generator.
function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
}
