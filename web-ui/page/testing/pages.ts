// Imported for its effect: loads the code of all pages, so that a test awaits only what a page shows.
import { beforeAll } from "vitest";
import { loadAll } from "../shell/pages";

// Transforming them takes long on a busy machine.
beforeAll(loadAll, 60_000);
