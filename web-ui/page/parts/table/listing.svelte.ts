// The rows of a table by the parameters of the address: filtered, sorted, one page of them.
//
// Sorting comes before filtering, so that typing does not sort. Rows keep their places while the pointer is
// over a table with `still`.
import type { Address } from "../../context/address.svelte";
import type { Names } from "../../format/key";
import { held, matches, page, sorted } from "./order";
import type { Columns, Page } from "./order";

interface Of<Row> {
  readonly rows: () => readonly Row[];
  readonly columns: Columns<Row>;
  // Unique per row.
  readonly name: (row: Row) => string;
  // The default sort.
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
  // The rows that match the filter.
  readonly found: readonly Row[] = $derived.by(() => {
    const { name, text = name } = this.#of;
    const found = this.#sorted.filter((row) => matches(text(row), this.#address.get("q")));
    const rows = this.#busy && this.#sort === this.#before.sort ? held(found, this.#before.names, name) : found;
    this.#before = { sort: this.#sort, names: rows.map(name) };
    return rows;
  });
  readonly #page: Page<Row> = $derived.by(() => page(this.found, Number(this.#address.get("page", "1"))));
  // The rows of this page.
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
  // For a table with changing statistics.
  readonly still = {
    onpointerenter: () => { this.#busy = true; },
    onpointerleave: () => { this.#busy = false; },
  };

  constructor(address: Address, of: Of<Row>) {
    this.#address = address;
    this.#of = of;
  }
}

// The columns of KeyHeadings.
export function keyColumns<Row>(key: (row: Row) => Names | undefined): Columns<Row> {
  return {
    caller: (row) => key(row)?.callerService ?? "",
    cluster: (row) => key(row)?.callerCluster ?? "",
    callee: (row) => key(row)?.calleeService ?? "",
    method: (row) => key(row)?.calleeMethod ?? "",
  };
}
