// Addresses of the other servers that a browser can open.
import type { Replica } from "$wire/fleet_pb";

export function elsewhere(replicas: readonly Replica[], own: string): string[] {
  const origins = replicas.filter(({ self }) => !self).flatMap(({ address }) => originOf(address) ?? []);
  return [...new Set(origins)].filter((origin) => origin !== own).sort();
}

function originOf(address: string): string | undefined {
  try {
    const { protocol, origin } = new URL(address);
    return protocol === "http:" || protocol === "https:" ? origin : undefined;
  } catch {
    return undefined;
  }
}
