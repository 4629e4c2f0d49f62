// Author and reason of a change. The author's name is stored in this browser; a token replaces it.
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
    // Without storage the name is entered each time.
  }
}
