// The dialog before something that can hurt.
import { Code, ConnectError } from "@connectrpc/connect";
import { cleanup, render, screen, waitFor } from "@testing-library/svelte";
import userEvent from "@testing-library/user-event";
import { createRawSnippet, tick } from "svelte";
import { afterEach, expect, test, vi } from "vitest";
import { withDialogs } from "../testing/messages";
import Confirm from "./Confirm.svelte";

withDialogs();
afterEach(cleanup);

const children = createRawSnippet(() => ({ render: () => "<p>Two rules change.</p>" }));

function shown(onconfirm: () => Promise<void>, more: object = {}) {
  const onclose = vi.fn();
  render(Confirm, { title: "Roll back?", action: "Roll back", onconfirm, onclose, children, ...more });
  return { onclose, user: userEvent.setup() };
}

test("a double click sends one request", async () => {
  let finish = () => {};
  const onconfirm = vi.fn(() => new Promise<void>((resolve) => { finish = resolve; }));
  const { onclose, user } = shown(onconfirm);
  expect(screen.getByText("Two rules change.")).toBeTruthy();
  await user.dblClick(screen.getByRole("button", { name: "Roll back" }));
  expect(onconfirm).toHaveBeenCalledTimes(1);
  await user.keyboard("{Escape}");
  expect(onclose).not.toHaveBeenCalled();
  finish();
  await waitFor(() => { expect(onclose).toHaveBeenCalledTimes(1); });
});

test("Escape leaves without a request", async () => {
  const onconfirm = vi.fn(() => Promise.resolve());
  const { onclose, user } = shown(onconfirm);
  screen.getByRole("button", { name: "Cancel" }).focus();
  await user.keyboard("{Escape}");
  expect(onclose).toHaveBeenCalledTimes(1);
  expect(onconfirm).not.toHaveBeenCalled();
});

// Opens a dialog by a button, runs `meanwhile`, closes it and returns the focused element.
async function focusAfter(meanwhile: (button: HTMLButtonElement) => void): Promise<Element | null> {
  document.body.innerHTML = '<main id="main" tabindex="-1"><button>Review…</button></main>';
  const button = screen.getByRole<HTMLButtonElement>("button", { name: "Review…" });
  button.focus();
  const { unmount } = render(Confirm, { title: "Roll back?", action: "Roll back", onconfirm: () => Promise.resolve(), onclose: () => {}, children });
  screen.getByRole("button", { name: "Cancel" }).focus();
  meanwhile(button);
  unmount();
  await tick();
  return document.activeElement;
}

test("the focus returns to its place, or to the page if that is gone", async () => {
  expect((await focusAfter(() => {}))?.textContent).toBe("Review…");
  expect((await focusAfter((button) => { button.disabled = true; }))?.id).toBe("main");
  expect((await focusAfter((button) => { button.remove(); }))?.id).toBe("main");
});

test("an error of the server is shown and allows another try", async () => {
  const onconfirm = vi.fn(() => Promise.reject(new ConnectError("needs the role operator", Code.PermissionDenied)));
  const { onclose, user } = shown(onconfirm);
  await user.click(screen.getByRole("button", { name: "Roll back" }));
  expect((await screen.findByRole("alert")).textContent).toContain("needs the role operator");
  expect(onclose).not.toHaveBeenCalled();
  await user.click(screen.getByRole("button", { name: "Roll back" }));
  expect(onconfirm).toHaveBeenCalledTimes(2);
});

test("a blocked dialog shows the reason and sends nothing", async () => {
  const onconfirm = vi.fn(() => Promise.resolve());
  const { user } = shown(onconfirm, { blocked: "Disconnected." });
  await user.click(screen.getByRole("button", { name: "Roll back" }));
  expect(onconfirm).not.toHaveBeenCalled();
  expect(screen.getByText("Disconnected.", { exact: false })).toBeTruthy();
});
