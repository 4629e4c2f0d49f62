// Marks of changes on a chart. Marks that are too close together are merged.

export interface Mark {
  // Seconds since the epoch, by this machine's clock.
  readonly at: number;
  // One letter or shape.
  readonly sign: string;
  readonly words: string;
  readonly href: string;
}

export interface Placed extends Mark {
  // 0 = the left edge of the plot, 1 = its right one.
  readonly share: number;
  // The number of merged marks.
  readonly count: number;
}

const APART = 0.035;

// The newest of merged marks gives shape and link.
export function place(marks: readonly Mark[], nowS: number, windowS: number): Placed[] {
  const placed: Placed[] = [];
  for (const mark of [...marks].sort((a, b) => b.at - a.at)) {
    const share = 1 - (nowS - mark.at) / windowS;
    if (share < 0 || share > 1) continue;
    const last = placed.at(-1);
    if (last !== undefined && last.share - share < APART) {
      placed[placed.length - 1] = { ...last, count: last.count + 1, words: `${last.words}; ${mark.words}` };
    } else placed.push({ ...mark, share, count: 1 });
  }
  return placed;
}
