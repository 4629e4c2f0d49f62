// The address of the page as state: path and parameters, so that a link shows the same and Back works.
//
// Typing replaces the entry of the browser's history; any other change adds one. A page with unsaved edits
// holds the address: leaving it needs a confirmation.
import type { Names } from "../format/key";

// Called before the page is left; `leave` continues.
export type Hold = (leave: () => void) => void;

export class Address {
  path = $state.raw(location.pathname);
  #params = $state.raw(new URLSearchParams(location.search));
  #hold: Hold | undefined;

  get(name: string, otherwise = ""): string {
    return this.#params.get(name) ?? otherwise;
  }

  // Undefined and empty values remove the parameter.
  set(changes: Record<string, string | undefined>, step: "push" | "replace" = "push"): void {
    this.#move(new URL(this.with(changes), location.href), step);
  }

  // Returns the current address with changed parameters.
  with(changes: Record<string, string | undefined>): string {
    const params = new URLSearchParams(this.#params);
    for (const [name, value] of Object.entries(changes)) {
      if (value === undefined || value === "") params.delete(name);
      else params.set(name, value);
    }
    const query = params.toString();
    return query === "" ? this.path : `${this.path}?${query}`;
  }

  // Opens another page of this site.
  go(href: string): void {
    const move = () => {
      this.#hold = undefined;
      this.#move(new URL(href, location.href), "push");
      scrollTo(0, 0);
    };
    if (this.#hold === undefined) move();
    else this.#hold(move);
  }

  // Follows Back and Forward. A held page stays until its holder calls `leave`.
  follow(): void {
    const wanted = location.href;
    if (this.#hold === undefined || location.pathname === this.path) {
      this.#read();
      return;
    }
    history.pushState(null, "", `${this.path}?${this.#params.toString()}`);
    this.go(wanted);
  }

  hold(hold: Hold | undefined): void {
    this.#hold = hold;
  }

  get isHeld(): boolean {
    return this.#hold !== undefined;
  }

  #move(url: URL, step: "push" | "replace"): void {
    if (url.href !== location.href) {
      if (step === "push") history.pushState(null, "", url);
      else history.replaceState(null, "", url);
    }
    this.#read();
  }

  #read(): void {
    this.path = location.pathname;
    this.#params = new URLSearchParams(location.search);
  }
}

const PARTS = ["caller", "cluster", "callee", "method"] as const;

// The address of a page about one rule or route.
export function hrefOf(page: "/rule" | "/route" | "/guard", key: Names | undefined, more: Record<string, string> = {}): string {
  const names = [key?.callerService, key?.callerCluster, key?.calleeService, key?.calleeMethod];
  const params = new URLSearchParams(PARTS.map((part, at) => [part, names[at] ?? ""]));
  for (const [name, value] of Object.entries(more)) params.set(name, value);
  return `${page}?${params.toString()}`;
}

// The four names in the address; undefined if one is missing.
export function namesIn(address: Address): Names | undefined {
  const [callerService = "", callerCluster = "", calleeService = "", calleeMethod = ""] = PARTS.map((part) => address.get(part));
  if ([callerService, callerCluster, calleeService, calleeMethod].includes("")) return undefined;
  return { callerService, callerCluster, calleeService, calleeMethod };
}
