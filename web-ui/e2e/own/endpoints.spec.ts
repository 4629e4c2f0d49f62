// One bad instance of three on the Route page. Reports are scripted; server, web UI and protocol are real.
import { Fate } from "../../gen/damper/v1/distribution_pb";
import { expectSound } from "../accessibility";
import { at, expect, KEY, live, test } from "./setup";

const { calleeService, calleeMethod } = KEY;

// Successful calls, and the state of three endpoints, of which the second may fail.
function reporting(isBad: () => boolean) {
  return (second: bigint) => {
    const endpoint = (port: number, recentFailures: number) => ({
      address: `10.0.0.${String(port)}:7702`, zone: `zone-${String(port)}`, connected: true, ejected: recentFailures > 0,
      recent: recentFailures > 0 ? recentFailures : 32, recentFailures,
    });
    return {
      routes: [{ calleeService, calleeMethod, calls: 50n * second, attempts: 50n * second, fates: [{ fate: Fate.OK, count: 50n * second }] }],
      endpoints: [{ calleeService, count: 3, worst: [endpoint(2, isBad() ? 7 : 0), endpoint(1, 0), endpoint(3, 0)] }],
    };
  };
}

test("the route shows failing and ejected endpoints, and recovery", async ({ page, connect }) => {
  let isBad = true;
  connect(KEY.callerService, { serves: true }).flow(reporting(() => isBad));
  connect(KEY.callerService, { serves: true }).flow(reporting(() => isBad));
  await live(page, at("/route"));
  const section = page.getByTestId("endpoints");
  await expect(section).toContainText(`1 of 3 endpoints of ${calleeService} fails 100.0% of its last requests: 10.0.0.2:7702 (zone zone-2); ejected by 2 of 2 clients.`);
  const worst = section.getByRole("row").nth(1);
  await expect(worst).toContainText(/10\.0\.0\.2:7702\s*zone-2\s*14 of 14\s*2 of 2 clients\s*–/);
  await expectSound(page);
  isBad = false;
  await expect(section).toContainText("No endpoint fails more than the others, as reported by 2 clients.");
  await expectSound(page);
});
