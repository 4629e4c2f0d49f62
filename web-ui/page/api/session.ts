// The browser's session: signed in with a token, stored in a cookie that scripts cannot read.
import { createClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { Tokens } from "$wire/tokens_pb";
import type { WhoAmIResponse } from "$wire/tokens_pb";

export interface Session {
  // Undefined = signed in; otherwise the reason as text.
  readonly signIn: (token: string) => Promise<string | undefined>;
  // The same.
  readonly signOut: () => Promise<string | undefined>;
  readonly who: () => Promise<WhoAmIResponse>;
}

const ANSWER_WITHIN_MS = 10_000;

export function overHttp(): Session {
  const tokens = createClient(Tokens, createGrpcWebTransport({ baseUrl: location.origin }));
  return {
    signIn: (token) => ask("POST", { authorization: `Bearer ${token}` }),
    signOut: () => ask("DELETE", {}),
    who: () => tokens.whoAmI({}, { timeoutMs: ANSWER_WITHIN_MS }),
  };
}

// The token is sent in a header, which neither the address bar nor a log contains.
async function ask(method: "POST" | "DELETE", headers: Record<string, string>): Promise<string | undefined> {
  try {
    const signal = AbortSignal.timeout(ANSWER_WITHIN_MS);
    const answer = await fetch("/session", { method, headers, signal, credentials: "same-origin" });
    if (answer.ok) return undefined;
    const text = (await answer.text()).trim().slice(0, 300);
    return text === "" ? `The server returned HTTP ${answer.status}.` : text;
  } catch {
    return "The server is not responding.";
  }
}
