// Light, dark, or as the system has it. The choice is kept in this browser only.
import { store } from "./store.js";

const NAME = "orchgpu-theme";
const ORDER = ["auto", "light", "dark"];
const systemDark = matchMedia("(prefers-color-scheme: dark)");

export const theme = store(localStorage.getItem(NAME) ?? "auto");
/** "light" or "dark", for what CSS cannot colour: the canvas of a chart. */
export const scheme = store("light");

function apply() {
  const chosen = theme.get();
  const dark = chosen === "dark" || (chosen === "auto" && systemDark.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  scheme.set(dark ? "dark" : "light");
}

export function nextTheme() {
  theme.set(ORDER[(ORDER.indexOf(theme.get()) + 1) % ORDER.length]);
}

theme.subscribe((value) => {
  localStorage.setItem(NAME, value);
  apply();
});
systemDark.addEventListener("change", apply);
apply();
