// Minutes that charts show, from the address.
import type { Address } from "../../context/address.svelte";

const USUAL = 15;
export const CHOICES = [5, USUAL] as const;

export function chartMinutes(address: Address): number {
  return CHOICES.find((each) => String(each) === address.get("minutes")) ?? USUAL;
}

// The value in the address.
export function minutesParam(minutes: number): string | undefined {
  return minutes === USUAL ? undefined : String(minutes);
}
