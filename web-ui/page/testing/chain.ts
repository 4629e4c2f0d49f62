// The Chain page with made-up services (`?services=60&fails=ledger`), for `npx vite` and /testing/chain.html.
// It sends no requests and is part of no build.
import { create } from "@bufbuild/protobuf";
import { createRouterTransport } from "@connectrpc/connect";
import { mount } from "svelte";
import { Fleet, RouteStatsSchema } from "$wire/fleet_pb";
import type { Edge } from "$wire/fleet_pb";
import { Mode } from "$wire/policy_pb";
import { WhoAmIResponseSchema } from "$wire/tokens_pb";
import { api } from "../api/client";
import App from "../shell/App.svelte";
import { manyServices } from "./many_services";
import type { Session } from "../api/session";
import { messageEvent } from "./messages";
import "../style/page.css";

const asked = new URLSearchParams(location.search);
const count = Number(asked.get("services") ?? "60");
history.replaceState(null, "", "/chain");

const chain = manyServices(count, 1, asked.get("fails") ?? "");

function routesOf(edge: Edge) {
  return Array.from({ length: edge.routes }, (_, at) =>
    create(RouteStatsSchema, {
      key: { callerService: edge.callerService, callerCluster: "default", calleeService: edge.calleeService, calleeMethod: `shop.v1.${edge.calleeService}/Do${at + 1}` },
      callsPerS: edge.callsPerS / edge.routes,
      attemptsPerS: edge.attemptsPerS / edge.routes,
      amplification: edge.amplification,
      errorShare: edge.errorShare,
      ...(edge.routesWithoutRule > 0
        ? {}
        : { mode: Mode.ENFORCE, rule: { callerService: "*", callerCluster: "*", calleeService: edge.calleeService, calleeMethod: "*" } }),
    }));
}

const transport = createRouterTransport(({ service }) => {
  service(Fleet, {
    getChain: ({ service: around }) => ({
      ...chain,
      edges: chain.edges.filter((edge) => around === "" || edge.callerService === around || edge.calleeService === around),
    }),
  });
});
const session: Session = {
  signIn: () => Promise.resolve(undefined),
  signOut: () => Promise.resolve(undefined),
  who: () => Promise.resolve(create(WhoAmIResponseSchema, {})),
};
mount(App, {
  target: document.body,
  props: {
    api: api(transport),
    session,
    open: (listener) => {
      const first = messageEvent({ reset: true, revision: 60n, connectedClients: count, routes: chain.edges.flatMap(routesOf) });
      listener(first);
      const beat = setInterval(() => { listener(messageEvent({ revision: 60n, connectedClients: count })); }, 1_000);
      return { close: () => { clearInterval(beat); }, again: () => {} };
    },
  },
});
