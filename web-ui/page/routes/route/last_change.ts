// The last change of a rule that matches a route, at any time.
import type { Client } from "@connectrpc/connect";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { ChangeFilterSchema, ObjectKind } from "$wire/history_pb";
import type { History } from "$wire/history_pb";
import type { RouteKey } from "$wire/policy_pb";
import { touching } from "./related_changes";
import type { Touch } from "./related_changes";

export interface LastChange {
  readonly touch: Touch;
  // The state before it is still kept, so a rollback is possible.
  readonly canGoBack: boolean;
}

// Of the changes for the same two services, some are for another cluster or method. The search ends after
// this number of pages.
const PAGES = 5;

// Undefined = none is kept.
export async function lastRuleChange(history: Client<typeof History>, key: RouteKey, signal: AbortSignal): Promise<LastChange | undefined> {
  const filters = [key.callerService, "*"].flatMap((callerService) =>
    [key.calleeService, "*"].map((calleeService) => ({ kind: ObjectKind.RULE, names: { callerService, calleeService } })));
  const found = await Promise.all(filters.map((filter) => newest(history, key, filter, signal)));
  return found.flatMap((one) => one ?? []).sort((a, b) => (a.touch.change.revision < b.touch.change.revision ? 1 : -1))[0];
}

async function newest(history: Client<typeof History>, key: RouteKey, filter: MessageInitShape<typeof ChangeFilterSchema>, signal: AbortSignal): Promise<LastChange | undefined> {
  let pageToken = "";
  for (let page = 0; page < PAGES; page += 1) {
    const { changes, nextPageToken, oldestRevision } = await history.listChanges({ filter, pageToken }, { signal });
    const [touch] = touching(changes, key);
    if (touch !== undefined) return { touch, canGoBack: touch.change.revision > oldestRevision };
    if (nextPageToken === "") return undefined;
    pageToken = nextPageToken;
  }
  return undefined;
}
