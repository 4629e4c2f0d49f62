import { expect, test } from "vitest";
import { Fate } from "$wire/distribution_pb";
import { fateName } from "./fates";

test("fates read as words, unknown ones too", () => {
  expect([fateName(Fate.CHAIN_NO_MORE_RETRY), fateName(99 as Fate)]).toEqual(["given up downstream", "fate 99"]);
});
