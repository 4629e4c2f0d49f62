// Names of known routes, as suggestions for each part of a key.
import type { RouteStats } from "$wire/fleet_pb";
import type { Names } from "../format/key";

export type KnownNames = Readonly<Record<keyof Names, readonly string[]>>;

export function knownNames(routes: Iterable<RouteStats>): KnownNames {
  const keys = [...routes].flatMap(({ key }) => key ?? []);
  const of = (part: keyof Names) => [...new Set(keys.map((key) => key[part]))].sort();
  return { callerService: of("callerService"), callerCluster: of("callerCluster"), calleeService: of("calleeService"), calleeMethod: of("calleeMethod") };
}
