// The deployed functions, read once for the whole page, and the colour of each name in it.
import { store } from "./store.js";

/** The functions that this key sees: [{name, tenant, warm_keys, …}]. */
export const deployed = store([]);

export function setDeployed(functions) {
  palettes.function = palette(functions.map((one) => one.name));
  palettes.tenant = palette(functions.map((one) => one.tenant).filter(Boolean));
  deployed.set(functions);
}

const HUES = 8; // --series-1 … --series-8
const palettes = { function: new Map(), tenant: new Map() };

// Name → hue: that of its hash, or the next one while another deployed name has that. In the order of
// hashes, so that a new name moves few others.
function palette(names) {
  const found = new Map();
  const used = new Set();
  for (const name of [...new Set(names)].sort((a, b) => hashOf(a) - hashOf(b))) {
    const hue = firstFree(hashOf(name), used);
    used.add(hue);
    found.set(name, hue);
  }
  return found;
}

function firstFree(hash, used) {
  const order = Array.from({ length: HUES }, (_, step) => (hash + step) % HUES);
  return order.find((hue) => !used.has(hue)) ?? order[0];
}

/** The colour of a `function` or `tenant`: the same in every view, at every width, in every browser. */
export function colourOf(kind, name) {
  if (!name) return "var(--text-muted)"; // of another tenant, or of none
  const known = palettes[kind];
  const hue = known.get(name) ?? firstFree(hashOf(name), new Set(known.values()));
  return `var(--series-${hue + 1})`;
}

function hashOf(text) {
  let hash = 2166136261; // FNV-1a
  for (const letter of text) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619);
  return hash >>> 0;
}
