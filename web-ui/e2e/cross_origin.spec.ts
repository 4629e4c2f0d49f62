// A page of another origin in a real browser changes nothing.
//
// Two pages try it: one of another site (localhost for 127.0.0.1), and one of the same site on another port,
// to which browsers send the cookies of this one. The servers are one without tokens (DAMPER_URL) and one to
// which the browser is signed in (DAMPER_GUARDED_URL, DAMPER_GUARDED_TOKEN).
import { create, toBinary } from "@bufbuild/protobuf";
import { createClient } from "@connectrpc/connect";
import { createGrpcWebTransport } from "@connectrpc/connect-web";
import { expect, test } from "@playwright/test";
import type { BrowserContext, Page } from "@playwright/test";
import { createServer } from "node:http";
import type { Server } from "node:http";
import type { AddressInfo } from "node:net";
import { Mode } from "../gen/damper/v1/policy_pb";
import { PutRuleRequestSchema, Rules } from "../gen/damper/v1/rules_pb";

const open = process.env["DAMPER_URL"];
const guarded = process.env["DAMPER_GUARDED_URL"];
const token = process.env["DAMPER_GUARDED_TOKEN"];
if (!open || !guarded || !token) throw new Error("set DAMPER_URL, DAMPER_GUARDED_URL and DAMPER_GUARDED_TOKEN");

const KEY = { callerService: "elsewhere", callerCluster: "*", calleeService: "victim", calleeMethod: "a.B/C" };
const PATH = "/damper.v1.Rules/PutRule";

let other: Server;
let port: number;

test.beforeAll(async () => {
  other = createServer((_, answer) => {
    answer.setHeader("content-type", "text/html");
    answer.end("<!doctype html><title>elsewhere</title>");
  });
  await new Promise<void>((done) => other.listen(0, "0.0.0.0", done));
  port = (other.address() as AddressInfo).port;
});

test.afterAll(async () => {
  await new Promise((done) => other.close(done));
});

// A message as gRPC-Web frames it.
function frame(): number[] {
  const request = create(PutRuleRequestSchema, { rule: { key: KEY, policy: { mode: Mode.OFF } } });
  const message = toBinary(PutRuleRequestSchema, request);
  const length = [24, 16, 8, 0].map((shift) => (message.length >>> shift) & 0xff);
  return [0, ...length, ...message];
}

// Every way in which a page can send a request, with its result.
async function attack(context: BrowserContext, from: string, target: string): Promise<string[]> {
  const page = await context.newPage();
  await page.goto(from);
  const results = await page.evaluate(
    async ({ url, bytes, session }) => {
      const body = new Uint8Array(bytes);
      const kinds = ["application/grpc-web+proto", "application/grpc-web-text", "text/plain", "application/x-www-form-urlencoded"];
      const attempts: (readonly [string, () => Promise<Response>])[] = [];
      for (const mode of ["cors", "no-cors"] as const) {
        for (const kind of kinds) {
          const init: RequestInit = { method: "POST", mode, credentials: "include", headers: { "content-type": kind }, body };
          attempts.push([`${mode} ${kind}`, () => fetch(url, init)]);
        }
        attempts.push([`${mode} sign out`, () => fetch(session, { method: mode === "cors" ? "DELETE" : "POST", mode, credentials: "include" })]);
      }
      const outcomes: string[] = [];
      for (const [name, ask] of attempts) {
        try {
          const answer = await ask();
          outcomes.push(`${name}: ${answer.type === "opaque" ? "opaque" : String(answer.status)}`);
        } catch {
          outcomes.push(`${name}: refused`);
        }
      }
      outcomes.push(`beacon: ${String(navigator.sendBeacon(url, new Blob([body], { type: "text/plain" })))}`);
      return outcomes;
    },
    { url: `${target}${PATH}`, bytes: frame(), session: `${target}/session` },
  );
  for (const enctype of ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded"]) {
    results.push(`form ${enctype}: ${String(await submit(page, from, `${target}${PATH}`, enctype))}`);
  }
  await page.close();
  return results;
}

// A form leaves its page.
async function submit(page: Page, from: string, url: string, enctype: string): Promise<number> {
  await page.goto(from);
  const answered = page.waitForResponse((response) => response.url() === url && response.request().isNavigationRequest());
  await page.evaluate(
    ({ url, enctype }) => {
      const form = document.createElement("form");
      Object.assign(form, { action: url, method: "POST", enctype });
      form.append(Object.assign(document.createElement("input"), { name: "x", value: "y" }));
      document.body.append(form);
      // After this script, which the navigation would abort.
      setTimeout(() => { form.submit(); });
    },
    { url, enctype },
  );
  const status = (await answered).status();
  await page.waitForURL(url);
  return status;
}

async function rules(target: string, headers: Record<string, string> = {}) {
  const client = createClient(Rules, createGrpcWebTransport({ baseUrl: target }));
  const listed = await client.listRules({ filter: { callerService: KEY.callerService } }, { headers });
  return listed.rules.length;
}

for (const host of ["localhost", "127.0.0.1"]) {
  test(`a page of http://${host} on another port changes nothing on an open server`, async ({ context }) => {
    const results = await attack(context, `http://${host}:${String(port)}/`, open);
    expect(results.filter((line) => / 20\d$/.test(line))).toEqual([]);
    expect(results.filter((line) => line.startsWith("form")).every((line) => line.endsWith(": 403"))).toBe(true);
    expect(await rules(open)).toBe(0);
  });

  test(`a page of http://${host} on another port has nothing of a session`, async ({ context }) => {
    const page = await context.newPage();
    await page.goto(guarded);
    const signedIn = await page.evaluate(async (bearer) => {
      const answer = await fetch("/session", { method: "POST", headers: { authorization: `Bearer ${bearer}` } });
      return answer.status;
    }, token);
    expect(signedIn).toBe(204);
    const cookies = await context.cookies(guarded);
    expect(cookies.map(({ name, httpOnly, sameSite }) => ({ name, httpOnly, sameSite }))).toEqual([
      { name: "damper-session", httpOnly: true, sameSite: "Strict" },
    ]);
    expect(await page.evaluate(() => document.cookie)).toBe("");
    const results = await attack(context, `http://${host}:${String(port)}/`, guarded);
    expect(results.filter((line) => / 20\d$/.test(line))).toEqual([]);
    expect(results.filter((line) => line.startsWith("form")).every((line) => line.endsWith(": 403"))).toBe(true);
    expect(await rules(guarded, { authorization: `Bearer ${token}` })).toBe(0);
    expect(await context.cookies(guarded)).toEqual(cookies);
    // The session itself still works.
    const own = await page.evaluate(
      async ({ url, bytes }) => {
        const headers = { "content-type": "application/grpc-web+proto" };
        const answer = await fetch(url, { method: "POST", headers, body: new Uint8Array(bytes) });
        return new TextDecoder().decode(await answer.arrayBuffer());
      },
      { url: PATH, bytes: frame() },
    );
    expect(own).toContain("grpc-status:0");
    const client = createClient(Rules, createGrpcWebTransport({ baseUrl: guarded }));
    await client.deleteRule({ key: KEY }, { headers: { authorization: `Bearer ${token}` } });
  });
}
