// What fails every browser test by itself: whatever the browser complains about, in any tab, and any request that
// leaves the server.
import { expect } from "@playwright/test";
import type { BrowserContext } from "@playwright/test";

// Returns what to call at the end. What `expected` matches is no complaint: a server that was killed is one.
export function heed(context: BrowserContext, server: string, expected?: RegExp): () => void {
  const complaints: string[] = [];
  context.on("console", (message) => {
    const about = `${message.text()} ${message.location().url}`;
    if (!["error", "warning"].includes(message.type()) || expected?.test(about)) return;
    complaints.push(about);
  });
  context.on("weberror", (error) => complaints.push(error.error().message));
  context.on("request", (request) => {
    const { origin, protocol } = new URL(request.url());
    if (origin !== new URL(server).origin && protocol !== "blob:") complaints.push(`asked ${request.url()}`);
  });
  return () => { expect(complaints).toEqual([]); };
}
