import { svelteTesting } from "@testing-library/svelte/vite";
import { defineConfig, mergeConfig } from "vitest/config";
import page from "./vite.config.ts";

export default mergeConfig(
  page,
  defineConfig({
    plugins: [svelteTesting()],
    test: { environment: "jsdom", include: ["**/*.test.ts"], restoreMocks: true, testTimeout: 20_000 },
  }),
);
