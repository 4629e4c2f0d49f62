// Minutes that charts show, from the address.
import type { Address } from "../../context/address.svelte";

const USUAL = 15;
export const CHOICES = [5, USUAL] as const;

export function chartMinutes(address: Address, usual: number = USUAL): number {
  return CHOICES.find((each) => String(each) === address.get("minutes")) ?? usual;
}

// The value in the address.
export function minutesParam(minutes: number, usual: number = USUAL): string | undefined {
  return minutes === usual ? undefined : String(minutes);
}
