// Who says to make a change, where the server does not know it from a token. Kept in this browser.
export interface Attribution {
  readonly author: string;
  readonly reason: string;
}

const KEY = "damper.author";

export function author(): string {
  try {
    return localStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

export function keepAuthor(name: string): void {
  try {
    localStorage.setItem(KEY, name);
  } catch {
    // A browser that keeps nothing asks again.
  }
}
