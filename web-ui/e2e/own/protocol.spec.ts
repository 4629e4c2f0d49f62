// What goes between the page and the server is gRPC-Web, by its type too: Connect's client would take it under any name,
// proxies do not.
import { expect, live, test } from "./setup";

test("questions and answers are said to be gRPC-Web", async ({ page }) => {
  const answered = page.waitForResponse((answer) => answer.url().endsWith("/damper.v1.Fleet/ListClients"));
  await live(page, "/clients");
  const answer = await answered;
  expect(answer.request().headers()["content-type"]).toBe("application/grpc-web+proto");
  expect(answer.headers()["content-type"]).toBe("application/grpc-web+proto");
});
