// Positions of labels: on their line, off services and other labels, and off other lines where possible.
//
// Positions depend on the drawing and on which lines have labels, not on their texts, so that no update moves
// a label.
import type { Box, Line, Placed, Point } from "./layout";

// Positions along the line; the middle is best.
const ALONG = [0.5, 0.45, 0.55, 0.4, 0.6, 0.35, 0.65, 0.3, 0.7, 0.25, 0.75, 0.2, 0.8, 0.15, 0.85];

// The centre of each label of this size. Of the free positions it takes the one that hides the fewest other
// lines. Without a free position the label lies in the middle: of many lines few are labelled at once.
export function labels(lines: readonly Line[], nodes: readonly Placed[], size: { width: number; height: number }, drawn = lines): Point[] {
  const taken: Box[] = [...nodes];
  const traces = drawn.map((line) => ({ line, whole: boxOf(line.points), steps: line.points.slice(1).map((point, at) => boxOf([line.points[at] ?? point, point])) }));
  const hidden = (own: Line, box: Box) =>
    traces.filter(({ line, whole, steps }) => line !== own && overlap(whole, box) && steps.some((step) => overlap(step, box))).length;
  return lines.map((line) => {
    const free = ALONG.map((share) => at(line, share)).filter((point) => !taken.some((box) => overlap(box, around(point, size))));
    const [best] = free.map((point) => ({ point, hides: hidden(line, around(point, size)) })).sort((a, b) => a.hides - b.hides);
    const point = best?.point ?? at(line, 0.5);
    taken.push(around(point, size));
    return point;
  });
}

function boxOf(points: readonly Point[]): Box {
  const [xs, ys] = [points.map(({ x }) => x), points.map(({ y }) => y)];
  const [x, y] = [Math.min(...xs), Math.min(...ys)];
  return { x, y, width: Math.max(...xs) - x, height: Math.max(...ys) - y };
}

export function around({ x, y }: Point, { width, height }: { width: number; height: number }): Box {
  return { x: x - width / 2, y: y - height / 2, width, height };
}

export function overlap(a: Box, b: Box): boolean {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

// The point at a share of the length of the line.
function at({ points }: Line, share: number): Point {
  const steps = points.slice(1).map((point, index) => {
    const before = points[index] ?? point;
    return { before, point, length: Math.hypot(point.x - before.x, point.y - before.y) };
  });
  let left = share * steps.reduce((sum, { length }) => sum + length, 0);
  for (const { before, point, length } of steps) {
    if (left <= length && length > 0) {
      const part = left / length;
      return { x: before.x + (point.x - before.x) * part, y: before.y + (point.y - before.y) * part };
    }
    left -= length;
  }
  return points.at(-1) ?? { x: 0, y: 0 };
}
