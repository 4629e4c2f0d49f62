// The objects that all components share.
import { getContext, setContext } from "svelte";
import type { Address } from "./address.svelte";
import type { Api } from "../api/client";
import type { Board } from "../feed/board.svelte";
import type { Me } from "./identity.svelte";
import type { Session } from "../api/session";

export interface App {
  readonly address: Address;
  readonly api: Api;
  readonly board: Board;
  readonly me: Me;
  readonly session: Session;
}

const KEY = Symbol("app");

export function provide(app: App): void {
  setContext(KEY, app);
}

export function app(): App {
  return getContext<App>(KEY);
}
