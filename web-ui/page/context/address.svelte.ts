// Where the page is: path and parameters of the address, so that a link shows what its sender saw and Back works.
//
// A step of typing replaces the entry of history, anything else makes a new one. Whoever has unsaved edits holds
// the page: leaving then takes a yes.
import type { Names } from "../format/key";

// Asked before the page is left; calls `leave` when it may be.
export type Hold = (leave: () => void) => void;

export class Address {
  path = $state.raw(location.pathname);
  #params = $state.raw(new URLSearchParams(location.search));
  #hold: Hold | undefined;

  get(name: string, otherwise = ""): string {
    return this.#params.get(name) ?? otherwise;
  }

  // What is undefined or empty is left out.
  set(changes: Record<string, string | undefined>, step: "push" | "replace" = "push"): void {
    this.#move(new URL(this.with(changes), location.href), step);
  }

  // This page's address, changed so.
  with(changes: Record<string, string | undefined>): string {
    const params = new URLSearchParams(this.#params);
    for (const [name, value] of Object.entries(changes)) {
      if (value === undefined || value === "") params.delete(name);
      else params.set(name, value);
    }
    const query = params.toString();
    return query === "" ? this.path : `${this.path}?${query}`;
  }

  // To another page of this site.
  go(href: string): void {
    const move = () => {
      this.#hold = undefined;
      this.#move(new URL(href, location.href), "push");
      scrollTo(0, 0);
    };
    if (this.#hold === undefined) move();
    else this.#hold(move);
  }

  // Back or Forward was pressed; a held page stays until its holder agrees.
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
