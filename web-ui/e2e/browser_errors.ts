// Errors that fail every browser test: messages in the console of any tab, and requests to another host.
import { expect } from "@playwright/test";
import type { BrowserContext } from "@playwright/test";

// Returns the check to call at the end. Errors that match `expected` are ignored.
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
