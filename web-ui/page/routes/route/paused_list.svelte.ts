// A list that updates, but not while a row is open.
//
// It pauses while a row is open, the pointer is over it, or it has the focus. Newer rows are counted and
// shown after that, or on request.
export class Reading<T extends { readonly id: string }> {
  open = $state.raw<ReadonlySet<string>>(new Set());
  hovered = $state(false);
  focused = $state(false);
  #latest = $state.raw<readonly T[]>([]);
  #still = $state.raw<readonly T[]>();

  get reads(): boolean {
    return this.hovered || this.focused || this.open.size > 0;
  }

  get shown(): readonly T[] {
    return this.#still ?? this.#latest;
  }

  // The number of rows that arrived during the pause.
  get waiting(): number {
    const still = this.#still;
    if (still === undefined) return 0;
    const known = new Set(still.map(({ id }) => id));
    return this.#latest.filter(({ id }) => !known.has(id)).length;
  }

  take(latest: readonly T[]): void {
    if (this.reads) this.#still ??= this.#latest;
    else this.#still = undefined;
    this.#latest = latest;
  }

  // Also during a pause.
  catchUp(): void {
    this.#still = this.reads ? this.#latest : undefined;
    const shown = new Set(this.shown.map(({ id }) => id));
    this.open = new Set([...this.open].filter((id) => shown.has(id)));
  }

  toggle(id: string): void {
    const open = new Set(this.open);
    if (!open.delete(id)) open.add(id);
    this.open = open;
  }
}
