// All pages by path.
import type { Component } from "svelte";
import type { Fleet } from "../feed/state";
import Overview from "../routes/overview/Overview.svelte";

export interface Page {
  readonly path: string;
  // Label in the navigation.
  readonly name: string;
  readonly title: string;
  // One line below the title.
  readonly about?: string;
  // Placeholder of the filter; none = the page has no filter.
  readonly filter?: string;
  // The code of each page but the first is loaded after it.
  readonly load: () => Promise<{ default: Component<{ fleet: Fleet }> }>;
}

const GUARD = "With a guard, the owner of a service limits the retries that its callers' rules allow. All guards that match a route apply.";

const QUEUE = "A queue keeps calls that must not be lost, and delivers them to a worker until one succeeds.";

export const PAGES: readonly Page[] = [
  { path: "/", name: "Overview", title: "Overview", filter: "Filter routes by name", load: () => Promise.resolve({ default: Overview }) },
  { path: "/chain", name: "Chain", title: "Chain", about: "Calls between services, and how their retries multiply along a chain of calls.", filter: "Filter edges by name", load: () => import("../graph/Chain.svelte") },
  { path: "/rules", name: "Rules", title: "Rules", about: "A rule sets how failed calls are retried. The most specific rule that matches a route applies.", filter: "Filter rules by name", load: () => import("../resources/rules/Rules.svelte") },
  { path: "/uncovered", name: "Without rules", title: "Routes without rules", about: "Calls of these routes are sent once and reported, not retried.", filter: "Filter routes by name", load: () => import("../routes/uncovered/Uncovered.svelte") },
  { path: "/guards", name: "Guards", title: "Guards", about: GUARD, filter: "Filter guards by name or owner", load: () => import("../resources/guards/Guards.svelte") },
  { path: "/queues", name: "Queues", title: "Queues", about: QUEUE, filter: "Filter queues by name or owner", load: () => import("../queues/Queues.svelte") },
  { path: "/clients", name: "Clients", title: "Clients", about: "Connected processes with the Damper SDK.", filter: "Filter clients by name", load: () => import("../clients/Clients.svelte") },
  { path: "/history", name: "History", title: "History", about: "Changes of rules, guards, queues, kill switches and tokens.", filter: "Filter changes by name", load: () => import("../history/History.svelte") },
  { path: "/kill", name: "Kill switch", title: "Kill switch", about: "Stops retries or all calls within about a second, for a limited time. Overrides every rule.", load: () => import("../kill/KillSwitch.svelte") },
];

// Pages of one object, linked from other pages.
export const DETAILS: readonly Page[] = [
  { path: "/guard", name: "Guards", title: "Guard", about: GUARD, load: () => import("../resources/guards/Guard.svelte") },
  { path: "/job", name: "Queues", title: "Job", about: "A kept call, and what became of its deliveries.", load: () => import("../queues/Job.svelte") },
  { path: "/queue", name: "Queues", title: "Queue", about: QUEUE, filter: "Filter routes by name", load: () => import("../queues/Queue.svelte") },
  { path: "/queue-settings", name: "Queues", title: "Settings of a queue", about: "How jobs of the queue are kept, delivered and given up.", load: () => import("../queues/settings/QueueSettings.svelte") },
  { path: "/route", name: "Overview", title: "Route", about: "Calls from one service to one method of another.", load: () => import("../routes/route/Route.svelte") },
  { path: "/rule", name: "Rules", title: "Rule", about: "How failed calls of the matching routes are retried.", load: () => import("../resources/rules/Rule.svelte") },
];

export function pageAt(path: string): Page | undefined {
  return [...PAGES, ...DETAILS].find((page) => page.path === path);
}

// Loads all pages, so that each opens at once, also while the control plane is unreachable.
export async function loadAll(): Promise<void> {
  await Promise.allSettled([...PAGES, ...DETAILS].map(({ load }) => load()));
}
