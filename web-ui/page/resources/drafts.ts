// Unsaved edits, kept in this tab over a reload and a sign-in. Never contains a token.
import type { Names } from "../format/key";
import { keyText } from "../format/key";
import type { Draft } from "./rules/draft";

export interface Kept {
  readonly at: number;
  // The revision at the start of the edit; "" = a new object.
  readonly revision: string;
  readonly before: Draft;
  readonly draft: Draft;
  // Of a rule or guard.
  readonly names?: Names;
  // Of a queue.
  readonly name?: string;
}

const PREFIX = "damper.draft ";

// A new object has no names yet.
export function draftKey(what: "rule" | "guard" | "queue", names: Names | string | undefined): string {
  // No name begins with a space.
  return `${PREFIX}${what} ${names === undefined ? " new" : typeof names === "string" ? names : keyText(names)}`;
}

export function keepDraft(key: string, kept: Kept): void {
  try {
    sessionStorage.setItem(key, JSON.stringify(kept));
  } catch {
    // Without storage the draft is lost by a reload.
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
    // Nothing was stored.
  }
}

// Called on Sign out.
export function dropDrafts(): void {
  try {
    for (const key of Object.keys(sessionStorage)) if (key.startsWith(PREFIX)) sessionStorage.removeItem(key);
  } catch {
    // Nothing was stored.
  }
}
