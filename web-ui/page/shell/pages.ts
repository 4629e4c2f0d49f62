// All pages by path.
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
  // Label in the navigation.
  readonly name: string;
  readonly title: string;
  // One line below the title.
  readonly about?: string;
  // Placeholder of the filter; none = the page has no filter.
  readonly filter?: string;
  readonly View: Component<{ fleet: Fleet }>;
}

const GUARD = "With a guard, the owner of a service limits the retries that its callers' rules allow. All guards that match a route apply.";

export const PAGES: readonly Page[] = [
  { path: "/", name: "Overview", title: "Overview", filter: "Filter routes by name", View: Overview },
  { path: "/chain", name: "Chain", title: "Chain", about: "Calls between services, and how their retries multiply along a chain of calls.", filter: "Filter edges by name", View: Chain },
  { path: "/rules", name: "Rules", title: "Rules", about: "A rule sets how failed calls are retried. The most specific rule that matches a route applies.", filter: "Filter rules by name", View: RulesPage },
  { path: "/uncovered", name: "Without rules", title: "Routes without rules", about: "Calls of these routes are sent once and reported, not retried.", filter: "Filter routes by name", View: Uncovered },
  { path: "/guards", name: "Guards", title: "Guards", about: GUARD, filter: "Filter guards by name or owner", View: Guards },
  { path: "/clients", name: "Clients", title: "Clients", about: "Connected processes with the Damper SDK.", filter: "Filter clients by name", View: Clients },
  { path: "/history", name: "History", title: "History", about: "Changes of rules, guards, kill switches and tokens.", filter: "Filter changes by name", View: History },
  { path: "/kill", name: "Kill switch", title: "Kill switch", about: "Stops retries or all calls within about a second, for a limited time. Overrides every rule.", View: KillSwitch },
];

// Pages of one object, linked from other pages.
export const DETAILS: readonly Page[] = [
  { path: "/guard", name: "Guards", title: "Guard", about: GUARD, View: GuardPage },
  { path: "/route", name: "Overview", title: "Route", about: "Calls from one service to one method of another.", View: RoutePage },
  { path: "/rule", name: "Rules", title: "Rule", about: "How failed calls of the matching routes are retried.", View: RulePage },
];

export function pageAt(path: string): Page | undefined {
  return [...PAGES, ...DETAILS].find((page) => page.path === path);
}
