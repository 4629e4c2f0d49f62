// The whole app in a test, at an address, with an in-memory server.
import { create } from "@bufbuild/protobuf";
import { createRouterTransport } from "@connectrpc/connect";
import type { ConnectRouter } from "@connectrpc/connect";
import { render } from "@testing-library/svelte";
import { Role, WhoAmIResponseSchema } from "$wire/tokens_pb";
import { vi } from "vitest";
import { api } from "../api/client";
import App from "../shell/App.svelte";
import type { Listener } from "../feed/link";
import type { Session } from "../api/session";
import { messageEvent, withDialogs } from "./messages";
import "./pages";

// Signed in as admin.
const admin: Session = {
  signIn: () => Promise.resolve(undefined),
  signOut: () => Promise.resolve(undefined),
  who: () => Promise.resolve(create(WhoAmIResponseSchema, { principal: "token kim (1)", role: Role.ADMIN, tokensRequired: true, session: true })),
};

export interface Shown {
  // Sends a message of the stream.
  readonly send: Listener;
}

export function shownAt(at: string, serve: (router: ConnectRouter) => void, first: object = {}, who?: object): Shown {
  vi.stubGlobal("ResizeObserver", class { observe() {} unobserve() {} disconnect() {} });
  vi.stubGlobal("scrollTo", () => {});
  vi.stubGlobal("matchMedia", () => new EventTarget());
  Element.prototype.scrollIntoView = () => {};
  withDialogs();
  localStorage.clear();
  history.replaceState(null, "", at);
  let send: Listener = () => {};
  render(App, {
    api: api(createRouterTransport(serve)),
    session: who === undefined ? admin : { ...admin, who: () => Promise.resolve(create(WhoAmIResponseSchema, who)) },
    open: (listener) => {
      send = listener;
      listener(messageEvent({ reset: true, revision: 20n, ...first }));
      return { close: () => {}, again: () => {} };
    },
  });
  return { send: (event) => { send(event); } };
}
