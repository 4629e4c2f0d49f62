// The system's Chromium; DAMPER_URL says where a server with traffic is, CHROMIUM where another browser is.
import { defineConfig } from "@playwright/test";

export default defineConfig({
  testDir: "e2e",
  timeout: 120_000,
  expect: { timeout: 20_000 },
  forbidOnly: true,
  // Tests that share a server take turns, for they write; those with servers of their own run beside them.
  workers: 3,
  fullyParallel: true,
  reporter: "list",
  // On the demo, which asks nobody; on a server that asks for tokens; and each on a server that it starts itself.
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
