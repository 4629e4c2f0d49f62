// The system's Chromium, or CHROMIUM; DAMPER_URL is a server with traffic.
import { defineConfig } from "@playwright/test";

export default defineConfig({
  testDir: "e2e",
  timeout: 120_000,
  expect: { timeout: 20_000 },
  forbidOnly: true,
  // Tests that share a server take turns, because they write; those with their own servers run concurrently.
  workers: 3,
  fullyParallel: true,
  reporter: "list",
  // "open" uses a demo without tokens, "guarded" a server with tokens; tests of "own" start their own.
  projects: [
    { name: "own", testMatch: "own/*.spec.ts", workers: 2 },
    { name: "open", testIgnore: ["guarded/**", "own/**"], workers: 1 },
    { name: "guarded", workers: 1, testMatch: "guarded/*.spec.ts", use: { baseURL: process.env["DAMPER_GUARDED_URL"], ignoreHTTPSErrors: true } },
  ],
  use: {
    baseURL: process.env["DAMPER_URL"],
    launchOptions: {
      executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium",
      chromiumSandbox: false,
      args: [
        "--headless",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
      ],
    },
  },
});
