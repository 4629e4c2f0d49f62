// Every page, by its path.
import type { Component } from "svelte";
import Chain from "../graph/Chain.svelte";
import Clients from "../clients/Clients.svelte";
import type { Fleet } from "../feed/state";
import KillSwitch from "../kill/KillSwitch.svelte";
import GuardPage from "../resources/guards/Guard.svelte";
import Guards from "../resources/guards/Guards.svelte";
import History from "../history/History.svelte";
import Overview from "../routes/overview/Overview.svelte";
import RoutePage from "../routes/route/Route.svelte";
import RulePage from "../resources/rules/Rule.svelte";
import RulesPage from "../resources/rules/Rules.svelte";
import Uncovered from "../routes/uncovered/Uncovered.svelte";

export interface Page {
  readonly path: string;
  // In the list of pages.
  readonly name: string;
  readonly title: string;
  // What the filter asks for; none = there is nothing to filter.
  readonly filter?: string;
  readonly View: Component<{ fleet: Fleet }>;
}

export const PAGES: readonly Page[] = [
  { path: "/", name: "Overview", title: "Overview", filter: "Filter routes by name", View: Overview },
  { path: "/chain", name: "Chain", title: "Chain", filter: "Filter edges by name", View: Chain },
  { path: "/rules", name: "Rules", title: "Rules", filter: "Filter rules by name", View: RulesPage },
  { path: "/uncovered", name: "Without rules", title: "Routes without rules", filter: "Filter routes by name", View: Uncovered },
  { path: "/guards", name: "Guards", title: "Guards", filter: "Filter guards by name or owner", View: Guards },
  { path: "/clients", name: "Clients", title: "Clients", filter: "Filter clients by name", View: Clients },
  { path: "/history", name: "History", title: "History", filter: "Filter changes by name", View: History },
  { path: "/kill", name: "Kill switch", title: "Kill switch", View: KillSwitch },
];

// Pages about one thing; reached from others.
export const DETAILS: readonly Page[] = [
  { path: "/guard", name: "Guards", title: "Guard", View: GuardPage },
  { path: "/route", name: "Overview", title: "Route", View: RoutePage },
  { path: "/rule", name: "Rules", title: "Rule", View: RulePage },
];

export function pageAt(path: string): Page | undefined {
  return [...PAGES, ...DETAILS].find((page) => page.path === path);
}
