// All connected clients in one list. Its pages may be of different moments.
import type { Client as Caller } from "@connectrpc/connect";
import type { Client, Fleet, ListClientsResponse } from "$wire/fleet_pb";

export async function allClients(fleet: Caller<typeof Fleet>, signal: AbortSignal): Promise<ListClientsResponse> {
  const clients: Client[] = [];
  let pageToken = "";
  for (;;) {
    const page = await fleet.listClients({ pageToken }, { signal });
    clients.push(...page.clients);
    if (page.nextPageToken === "") return { ...page, clients };
    pageToken = page.nextPageToken;
  }
}
