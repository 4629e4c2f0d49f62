// A service's process as the server sees one, doing what the test says: it answers what it is sent, or refuses it, or
// keeps silent, and reports what the test makes up. It speaks the real protocol to the real server.
//
// Connect's own gRPC over one HTTP/2 connection of Node's: its package for Node wants a newer Node than the page does.
import { create } from "@bufbuild/protobuf";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { createClient } from "@connectrpc/connect";
import type { UniversalClientFn } from "@connectrpc/connect/protocol";
import { createTransport } from "@connectrpc/connect/protocol-grpc";
import { connect } from "node:http2";
import type { ClientHttp2Session, IncomingHttpHeaders } from "node:http2";
import { ClientMessageSchema, Distribution, HelloSchema, ReportSchema, Source } from "../../gen/damper/v1/distribution_pb";
import type { ClientMessage, Refusal, ServerMessage } from "../../gen/damper/v1/distribution_pb";
import type { Mode } from "../../gen/damper/v1/policy_pb";

// As damper-core's `feature.rs` names them.
export const FEATURES = ["base", "hedge", "budget", "stop_when", "circuit_breaker", "credit", "backoffs", "hold_unary",
  "call_id", "baggage", "guards", "kill_switch"];

// What it answers to a message: undefined = nothing, else what it refuses of it.
export type Answer = (message: ServerMessage) => readonly Pick<Refusal, "key" | "revision" | "reason">[] | undefined;

// What a test may say of a process beside its name.
export interface Told {
  source?: Source;
  features?: string[];
  overrideMode?: Mode;
  serves?: boolean;
}

export const obedient: Answer = () => [];
export const silent: Answer = () => undefined;

export class Client {
  // May be changed at any time.
  answer: Answer;
  readonly #session: ClientHttp2Session;
  readonly #outbox = new Outbox();
  #waiting: ServerMessage[] = [];
  #flow: ReturnType<typeof setInterval> | undefined;

  constructor(url: string, identity: { service: string; cluster: string; instance: string }, told: Told = {}, answer: Answer = obedient) {
    this.answer = answer;
    this.#session = connect(url);
    // A server that is killed takes its connections with it.
    this.#session.on("error", () => undefined);
    const hello = create(HelloSchema, { identity, sdkVersion: "0.1.0", features: FEATURES, source: Source.LIVE, ...told });
    this.#outbox.put(create(ClientMessageSchema, { kind: { case: "hello", value: hello } }));
    void this.#listen();
  }

  // Reports again and again what this says of the second that it is, as a process under load does.
  flow(report: (second: bigint) => MessageInitShape<typeof ReportSchema>): void {
    const since = Date.now();
    const tell = () => { this.report(report(BigInt(Math.round((Date.now() - since) / 1000)))); };
    tell();
    this.#flow = setInterval(tell, 1_000);
  }

  // Counts since the process began, as a report of the SDK has them.
  report(report: MessageInitShape<typeof ReportSchema>): void {
    const told = create(ReportSchema, { source: Source.LIVE, ...report });
    this.#outbox.put(create(ClientMessageSchema, { kind: { case: "report", value: told } }));
  }

  // Answers now what it kept silent about.
  catchUp(): void {
    this.answer = obedient;
    for (const message of this.#waiting.splice(0)) this.#acknowledge(message);
  }

  end(): void {
    clearInterval(this.#flow);
    this.#outbox.end();
    this.#session.destroy();
  }

  async #listen(): Promise<void> {
    const transport = createTransport({
      httpClient: over(this.#session),
      baseUrl: "http://damper", useBinaryFormat: true, interceptors: [], acceptCompression: [], sendCompression: null,
      compressMinBytes: 1024, readMaxBytes: 0xffffffff, writeMaxBytes: 0xffffffff,
    });
    try {
      for await (const message of createClient(Distribution, transport).subscribe(this.#outbox)) this.#acknowledge(message);
    } catch {
      // The test has ended it, or its server.
    }
  }

  #acknowledge(message: ServerMessage): void {
    if (message.nonce === 0n) return;
    const refused = this.answer(message);
    if (refused === undefined) {
      this.#waiting.push(message);
      return;
    }
    const { nonce, revision } = message;
    const ack = { nonce, revision, refused: refused.map(({ key, revision, reason }) => ({ ...(key && { key }), revision, reason })) };
    this.#outbox.put(create(ClientMessageSchema, { kind: { case: "ack", value: ack } }));
  }
}

// What is to be sent, as it comes.
class Outbox implements AsyncIterable<ClientMessage> {
  readonly #messages: ClientMessage[] = [];
  #ended = false;
  #wake = () => {};

  put(message: ClientMessage): void {
    this.#messages.push(message);
    this.#wake();
  }

  end(): void {
    this.#ended = true;
    this.#wake();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ClientMessage> {
    while (!this.#ended) {
      yield* this.#messages.splice(0);
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
        if (this.#messages.length > 0 || this.#ended) resolve();
      });
    }
  }
}

function over(session: ClientHttp2Session): UniversalClientFn {
  return async ({ url, method, header, body = [] }) => {
    const stream = session.request({ ":path": new URL(url).pathname, ":method": method, ...Object.fromEntries(header) });
    void (async () => {
      for await (const bytes of body) stream.write(bytes);
      stream.end();
    })().catch(() => { stream.close(); });
    const trailer = new Headers();
    stream.on("trailers", (fields) => { copy(fields, trailer); });
    const head = await new Promise<IncomingHttpHeaders>((resolve, reject) => {
      stream.on("response", resolve);
      stream.on("error", reject);
    });
    const answered = new Headers();
    copy(head, answered);
    return { status: Number(head[":status"]), header: answered, body: stream as AsyncIterable<Uint8Array>, trailer };
  };
}

function copy(from: IncomingHttpHeaders, to: Headers): void {
  for (const [name, value] of Object.entries(from)) {
    if (!name.startsWith(":") && typeof value === "string") to.set(name, value);
  }
}
