// States as a word with a shape and a colour; the colour alone never carries the meaning.
import { html } from "../core/html.js";
import { words } from "../core/format.js";
import { Icon } from "./icons.js";

// state → [tone, icon]; a state of a newer scheduler is shown in the neutral tone
const TONES = {
  RECEIVED: ["neutral", "ring"],
  WAITING: ["wait", "ring"],
  RESERVED: ["held", "ring"],
  STAGED: ["held", "ring"],
  RUNNING: ["run", "disc"],
  COMMITTED: ["run", "disc"],
  SUCCEEDED: ["good", "check"],
  FAILED: ["bad", "cross"],
  REJECTED: ["bad", "cross"],
  CANCELLED: ["neutral", "dash"],
  SUPERSEDED: ["neutral", "dash"],
  INPUT_GONE: ["neutral", "dash"],
  // devices and hosts
  BUSY: ["run", "disc"],
  IDLE: ["good", "check"],
  OK: ["good", "check"],
  UP: ["good", "check"],
  SUSPECT: ["wait", "ring"],
  STALE: ["wait", "ring"],
  DRAINED: ["wait", "dash"],
  DRAINING: ["wait", "ring"],
  BAD: ["bad", "cross"],
  LOST: ["bad", "cross"],
};

export const STATES = ["RECEIVED", "WAITING", "RESERVED", "STAGED", "RUNNING", "COMMITTED",
  "SUCCEEDED", "FAILED", "REJECTED", "CANCELLED", "SUPERSEDED", "INPUT_GONE"];

const ENDED = new Set(STATES.slice(6));

export const isEnded = (state) => ENDED.has(state);

export const toneOf = (state) => (TONES[state?.toUpperCase()] ?? ["neutral"])[0];

export function State({ state }) {
  const [tone, icon] = TONES[state?.toUpperCase()] ?? ["neutral", "ring"];
  return html`
    <span class="state tone-${tone}">
      ${icon === "disc" ? html`<i class="disc" aria-hidden="true"></i>` : html`<${Icon} name=${icon} size="14" />`}
      <span>${words(state)}</span>
    </span>
  `;
}
