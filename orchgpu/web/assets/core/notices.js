// Short messages: shown for some seconds, and read out by a screen reader's live region.
import { store } from "./store.js";

const SHOWN_MS = 6000;

export const notices = store([]);
/** Text of the live region, for changes that need no visible message. */
export const announced = store("");

let last = 0;

export function notify(text, { kind = "info", hint = "" } = {}) {
  const id = ++last;
  notices.set([...notices.get().slice(-3), { id, text, kind, hint }]);
  announced.set(text);
  setTimeout(() => dismiss(id), kind === "error" ? SHOWN_MS * 2 : SHOWN_MS);
}

export const dismiss = (id) => notices.set(notices.get().filter((one) => one.id !== id));

export const announce = (text) => announced.set(text);

/** Runs a write: reports its success or the server's reason; true if it succeeded. */
export async function attempt(action, success) {
  try {
    const answer = await action();
    notify(typeof success === "function" ? success(answer) : success, { kind: "good" });
    return true;
  } catch (error) {
    notify(error.message, { kind: "error", hint: error.hint });
    return false;
  }
}
