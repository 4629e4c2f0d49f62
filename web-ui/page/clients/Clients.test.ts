// The clients view against an in-memory server.
import { cleanup, screen } from "@testing-library/svelte";
import { Via } from "$wire/distribution_pb";
import { Fleet } from "$wire/fleet_pb";
import { afterEach, expect, test, vi } from "vitest";
import { shownAt } from "../testing/app";

vi.mock("uplot", () => ({ default: class { setData() {} setSize() {} destroy() {} } }));
afterEach(cleanup);

test("a client that is a proxy is shown as one", async () => {
  const client = (service: string, via: Via) => ({ identity: { service, cluster: "default", instance: "1" }, sdkVersion: "0.1.0", via });
  shownAt("/clients", ({ service }) => {
    service(Fleet, { listClients: () => ({ clients: [client("orders", Via.UNSPECIFIED), client("stock", Via.PROXY)] }) });
  });
  const sdks = async (service: string) => {
    const row = (await screen.findByRole("rowheader", { name: service })).closest("tr");
    return row?.querySelector("[data-label=SDK]")?.textContent;
  };
  expect(await sdks("orders")).toBe("0.1.0");
  expect(await sdks("stock")).toBe("0.1.0 via proxy");
});
