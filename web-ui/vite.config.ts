import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

export default defineConfig({
  root: "page",
  // No svelte.config.js: the page needs no preprocessor beyond what Svelte does with TypeScript itself.
  plugins: [svelte({ configFile: false })],
  resolve: {
    alias: {
      $wire: new URL("gen/damper/v1", import.meta.url).pathname,
      $gen: new URL("gen", import.meta.url).pathname,
    },
  },
  worker: { format: "es" },
  // `npx vite` shows the page as it is edited, on the data of a running server.
  // Keeps the browser's host; otherwise the server rejects each call as cross-site.
  server: {
    proxy: { "^/(damper\\.v1\\.|session$)": { target: process.env["DAMPER_URL"] ?? "http://127.0.0.1:7600", changeOrigin: false } },
  },
  build: {
    outDir: "../dist",
    emptyOutDir: true,
    target: "es2023",
    // A data: URL would be refused under default-src 'self'.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    // Parts that several pages share go into few files, which compress better than many small ones. The first
    // page needs none of them.
    rolldownOptions: {
      output: {
        codeSplitting: {
          includeDependenciesRecursively: false,
          groups: [
            { name: "queues", test: /page\/queues\// },
            { name: "editing", test: /page\/(resources\/(?!drafts|compare)|parts\/(Confirm|Difference|Convergence|ReasonFields|WhatIf|predicted)|history\/(Rollback|rollback))/ },
          ],
        },
      },
    },
  },
});
