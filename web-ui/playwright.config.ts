// The system's Chromium; DAMPER_URL says where a server with traffic is, CHROMIUM where another browser is.
import { defineConfig } from "@playwright/test";

export default defineConfig({
  testDir: "e2e",
  timeout: 60_000,
  expect: { timeout: 20_000 },
  forbidOnly: true,
  // The tests share one server, and one of them writes.
  workers: 1,
  reporter: "list",
  // On the demo, which asks nobody; and on a server that asks for tokens.
  projects: [
    { name: "open", testIgnore: "guarded/**" },
    { name: "guarded", testMatch: "guarded/**", use: { baseURL: process.env["DAMPER_GUARDED_URL"], ignoreHTTPSErrors: true } },
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
