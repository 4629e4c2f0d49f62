// Filter, sorting and page live in the address, so that a link shows what its sender saw and Back works.

const DEFAULTS = { q: "", routes: "-amplification", rules: "caller", routesPage: "1", rulesPage: "1" } as const;

type Name = keyof typeof DEFAULTS;
type Values = Record<Name, string>;

export class Address {
  values = $state.raw<Values>(read());

  // A step of typing replaces the entry of history, anything else makes a new one.
  set(changes: Partial<Values>, step: "push" | "replace" = "push"): void {
    this.values = { ...this.values, ...changes };
    const url = new URL(location.href);
    for (const name of names()) {
      if (this.values[name] === DEFAULTS[name]) url.searchParams.delete(name);
      else url.searchParams.set(name, this.values[name]);
    }
    if (url.href === location.href) return;
    if (step === "push") history.pushState(null, "", url);
    else history.replaceState(null, "", url);
  }

  follow(): void {
    this.values = read();
  }
}

function read(): Values {
  const said = new URLSearchParams(location.search);
  const entries = names().map((name) => [name, said.get(name) ?? DEFAULTS[name]]);
  return Object.fromEntries(entries) as Values;
}

function names(): Name[] {
  return Object.keys(DEFAULTS) as Name[];
}
