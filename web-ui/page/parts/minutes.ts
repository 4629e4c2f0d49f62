// How many minutes charts show, as the address says: long enough for whoever comes after something began.
import type { Address } from "../address.svelte";

const USUAL = 15;
export const CHOICES = [5, USUAL] as const;

export function chartMinutes(address: Address): number {
  return CHOICES.find((each) => String(each) === address.get("minutes")) ?? USUAL;
}

// What the address says for it.
export function minutesParam(minutes: number): string | undefined {
  return minutes === USUAL ? undefined : String(minutes);
}
