// What is typed and not saved, kept in this tab: it survives a reload and signing in again. Never a token.
import type { Names } from "../format/key";
import { keyText } from "../format/key";
import type { Draft } from "./rules/draft";

export interface Kept {
  readonly at: number;
  // The revision that the edit began from; "" = there was nothing.
  readonly revision: string;
  readonly before: Draft;
  readonly draft: Draft;
  readonly names: Names;
  readonly owner?: string;
}

const PREFIX = "damper.draft ";

// A new one has no names yet.
export function draftKey(what: "rule" | "guard", names: Names | undefined): string {
  return `${PREFIX}${what} ${names === undefined ? "new" : keyText(names)}`;
}

export function keepDraft(key: string, kept: Kept): void {
  try {
    sessionStorage.setItem(key, JSON.stringify(kept));
  } catch {
    // A browser that keeps nothing, or no more, loses it at a reload as before.
  }
}

export function keptDraft(key: string): Kept | undefined {
  try {
    const text = sessionStorage.getItem(key);
    return text === null ? undefined : (JSON.parse(text) as Kept);
  } catch {
    return undefined;
  }
}

export function dropDraft(key: string): void {
  try {
    sessionStorage.removeItem(key);
  } catch {
    // Nothing was kept.
  }
}

// Who signs out leaves nothing behind.
export function dropDrafts(): void {
  try {
    for (const key of Object.keys(sessionStorage)) if (key.startsWith(PREFIX)) sessionStorage.removeItem(key);
  } catch {
    // Nothing was kept.
  }
}
