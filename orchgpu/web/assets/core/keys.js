// Keys of the whole page: / searches, g and a letter jumps, ? opens the help, Escape leaves.
import { go, href } from "./router.js";
import { store } from "./store.js";

export const VIEWS = [
  { view: "fleet", name: "Fleet", key: "f" },
  { view: "queue", name: "Queue", key: "q" },
  { view: "jobs", name: "Jobs", key: "j" },
  { view: "functions", name: "Functions", key: "u" },
  { view: "activity", name: "Activity", key: "a" },
  { view: "settings", name: "Settings", key: "s" },
];

export const helpOpen = store(false);

const JUMP_MS = 1200; // between g and its letter, by the times of the keys: a busy page handles them late
let jumpUntil_ms = 0;

const isTyping = (target) => target.closest?.("input, textarea, select, [contenteditable]");

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    if (isTyping(event.target)) event.target.blur();
    return;
  }
  if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
  const jumps = event.timeStamp < jumpUntil_ms;
  jumpUntil_ms = 0;
  const view = jumps && VIEWS.find((one) => one.key === event.key);
  if (view) go(href(view.view));
  else if (event.key === "g") jumpUntil_ms = event.timeStamp + JUMP_MS;
  else if (event.key === "?") helpOpen.set(true);
  else if (event.key === "/") document.querySelector("[data-search]")?.focus();
  else return;
  event.preventDefault();
}

export const startKeys = () => window.addEventListener("keydown", onKey);
