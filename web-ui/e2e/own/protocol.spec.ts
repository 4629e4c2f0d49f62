// Requests and responses are gRPC-Web by their content type too: Connect's client accepts any, proxies do
// not.
import { expect, live, test } from "./setup";

test("requests and responses have the type of gRPC-Web", async ({ page }) => {
  const answered = page.waitForResponse((answer) => answer.url().endsWith("/damper.v1.Fleet/ListClients"));
  await live(page, "/clients");
  const answer = await answered;
  expect(answer.request().headers()["content-type"]).toBe("application/grpc-web+proto");
  expect(answer.headers()["content-type"]).toBe("application/grpc-web+proto");
});
