// Sorting and paging of rows. A sort is written as in the address: the column, with a leading "-" if
// descending.

export const PAGE_SIZE = 100;

export type Columns<Row> = Record<string, (row: Row) => number | bigint | string>;

export interface Sort {
  readonly column: string;
  readonly descending: boolean;
}

export function parseSort(text: string): Sort {
  return text.startsWith("-") ? { column: text.slice(1), descending: true } : { column: text, descending: false };
}

// Names sort ascending first, numbers descending; a second press reverses the order.
export function nextSort(current: string, column: string, figures: boolean): string {
  const sort = parseSort(current);
  const descending = sort.column === column ? !sort.descending : figures;
  return descending ? `-${column}` : column;
}

// Equal rows are ordered by name, so that they do not move.
export function sorted<Row>(rows: readonly Row[], columns: Columns<Row>, text: string, name: (row: Row) => string): Row[] {
  const { column, descending } = parseSort(text);
  const value = Object.hasOwn(columns, column) ? columns[column] : undefined;
  const keyed = rows.map((row) => ({ row, value: value?.(row) ?? "", name: name(row) }));
  const sign = descending ? -1 : 1;
  keyed.sort((a, b) => sign * compare(a.value, b.value) || compare(a.name, b.name));
  return keyed.map(({ row }) => row);
}

function compare<T extends number | bigint | string>(a: T, b: T): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

// The rows in their earlier order; new rows follow.
export function held<Row>(rows: readonly Row[], before: readonly string[], name: (row: Row) => string): Row[] {
  const place = new Map(before.map((key, index) => [key, index]));
  const at = (row: Row) => place.get(name(row)) ?? before.length;
  return [...rows].sort((a, b) => at(a) - at(b));
}

export interface Page<Row> {
  readonly rows: Row[];
  // From 1, at most `of`.
  readonly number: number;
  readonly of: number;
}

export function page<Row>(rows: readonly Row[], wanted: number): Page<Row> {
  const of = Math.max(Math.ceil(rows.length / PAGE_SIZE), 1);
  const number = Math.min(Math.max(Number.isInteger(wanted) ? wanted : 1, 1), of);
  return { rows: rows.slice((number - 1) * PAGE_SIZE, number * PAGE_SIZE), number, of };
}

// Whether the key contains every word of the filter.
export function matches(key: string, filter: string): boolean {
  const name = key.toLowerCase();
  return filter.toLowerCase().split(/\s+/).every((word) => name.includes(word));
}
