// The key of a route, rule, guard or kill: four names.

export interface Names {
  readonly callerService: string;
  readonly callerCluster: string;
  readonly calleeService: string;
  readonly calleeMethod: string;
}

// One text per key. Names contain no spaces.
export function keyText(key: Names | undefined): string {
  if (key === undefined) return "";
  return `${key.callerService} ${key.callerCluster} ${key.calleeService} ${key.calleeMethod}`;
}
