// The signed-in identity, and why the server would reject its writes: such a control is not offered.
import { Role } from "$wire/tokens_pb";
import type { WhoAmIResponse } from "$wire/tokens_pb";
import type { Names } from "../format/key";
import type { Session } from "../api/session";

// As in docs/security.md.
const NEEDED = { rule: Role.EDITOR, guard: Role.OPERATOR, kill: Role.OPERATOR, queue: Role.EDITOR, jobs: Role.OPERATOR, everything: Role.OPERATOR } as const;
export type Written = keyof typeof NEEDED;
// A token with a scope cannot write these.
const UNSCOPED: ReadonlySet<Written> = new Set(["queue", "jobs", "everything"]);

export class Me {
  // Undefined = not known yet.
  who = $state.raw<WhoAmIResponse>();
  // The server has no proof of the identity, so the UI asks for a name.
  readonly isUnknown: boolean = $derived(this.who !== undefined && this.who.principal === "");

  readonly #session: Session;

  constructor(session: Session) {
    this.#session = session;
  }

  async ask(): Promise<void> {
    // The stream reports an unreachable server.
    const who = await this.#session.who().catch(() => undefined);
    if (who !== undefined) this.who = who;
  }

  forget(): void {
    this.who = undefined;
  }

  // Why a write would be rejected; undefined = it is allowed, or not known.
  refusal(what: Written, names?: readonly Names[]): string | undefined {
    const { who } = this;
    if (who?.tokensRequired !== true) return undefined;
    if (who.role < NEEDED[what]) return `Read only: your role is ${roleName(who.role)}; required role: ${roleName(NEEDED[what])}.`;
    if (who.role >= Role.ADMIN) return undefined;
    const { callers = [], callees = [] } = who.scope ?? {};
    const isWithin = UNSCOPED.has(what)
      ? callers.length + callees.length === 0
      : (names ?? []).every(({ callerService, calleeService }) => within(callers, callerService) && within(callees, calleeService));
    return isWithin ? undefined : "Read only: this is outside the scope of your token.";
  }
}

function roleName(role: Role): string {
  return (Role[role] ?? "unknown").toLowerCase();
}

// `*` in a key stands for every service, so only a scope of `*` contains it.
function within(scope: readonly string[], name: string): boolean {
  return scope.length === 0 || scope.some((each) => (each.endsWith("*") ? each === "*" || (name !== "*" && name.startsWith(each.slice(0, -1))) : each === name));
}
