// The rows of a page's table as its address says: filtered by its words, sorted, a page of them at a time.
//
// Sorted before they are filtered: typing sorts nothing. Rows stand still while the pointer is among them, where the
// table says when it is (`still`).
import type { Address } from "../../context/address.svelte";
import type { Names } from "../../format/key";
import { held, matches, page, sorted } from "./order";
import type { Columns, Page } from "./order";

interface Of<Row> {
  readonly rows: () => readonly Row[];
  readonly columns: Columns<Row>;
  // Each has its own.
  readonly name: (row: Row) => string;
  // The default.
  readonly sort: string;
  // Text that the filter searches; none = the name.
  readonly text?: (row: Row) => string;
}

export class Listing<Row> {
  readonly #address: Address;
  readonly #of: Of<Row>;
  #busy = $state(false);
  #before: { readonly sort: string; readonly names: readonly string[] } = { sort: "", names: [] };

  readonly #sort: string = $derived.by(() => this.#address.get("sort", this.#of.sort));
  readonly #sorted: readonly Row[] = $derived.by(() => sorted(this.#of.rows(), this.#of.columns, this.#sort, this.#of.name));
  // All that the filter lets through.
  readonly found: readonly Row[] = $derived.by(() => {
    const { name, text = name } = this.#of;
    const found = this.#sorted.filter((row) => matches(text(row), this.#address.get("q")));
    const rows = this.#busy && this.#sort === this.#before.sort ? held(found, this.#before.names, name) : found;
    this.#before = { sort: this.#sort, names: rows.map(name) };
    return rows;
  });
  readonly #page: Page<Row> = $derived.by(() => page(this.found, Number(this.#address.get("page", "1"))));
  // What is on this page.
  readonly rows: readonly Row[] = $derived.by(() => this.#page.rows);

  // For each Heading.
  readonly heading = $derived.by(() => ({
    sort: this.#sort,
    onsort: (sort: string) => { this.#address.set({ sort, page: undefined }); },
  }));
  // For the Pager.
  readonly pager = $derived.by(() => ({
    number: this.#page.number,
    of: this.#page.of,
    onpage: (number: number) => { this.#address.set({ page: String(number) }); },
  }));
  // For a table whose figures move.
  readonly still = {
    onpointerenter: () => { this.#busy = true; },
    onpointerleave: () => { this.#busy = false; },
  };

  constructor(address: Address, of: Of<Row>) {
    this.#address = address;
    this.#of = of;
  }
}

// The columns that KeyHeadings heads.
export function keyColumns<Row>(key: (row: Row) => Names | undefined): Columns<Row> {
  return {
    caller: (row) => key(row)?.callerService ?? "",
    cluster: (row) => key(row)?.callerCluster ?? "",
    callee: (row) => key(row)?.calleeService ?? "",
    method: (row) => key(row)?.calleeMethod ?? "",
  };
}
