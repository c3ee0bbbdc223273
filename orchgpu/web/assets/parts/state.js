// States as a word with a shape and a colour; the colour alone never carries the meaning.
import { words } from "../core/format.js";
import { html } from "../core/html.js";

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
  // runs and their steps
  DEADLINE: ["bad", "cross"],
  BLOCKED: ["neutral", "ring"],
  READY: ["wait", "ring"],
  STARTED: ["run", "disc"],
  DONE: ["good", "check"],
  SKIPPED: ["neutral", "dash"],
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

/** The style that gives an element the colour of a tone. */
export const toned = (tone) => ({ "--tone": `var(--${tone})` });

export const toneOf = (state) => (TONES[state?.toUpperCase()] ?? ["neutral"])[0];

export function State({ state }) {
  const [tone, icon] = TONES[state?.toUpperCase()] ?? ["neutral", "ring"];
  return html`
    <span class="state" style=${toned(tone)}>
      ${icon === "disc" ? html`<i class="mark disc" aria-hidden="true"></i>` : html`<${Icon} name=${icon} size="14" />`}
      <span>${words(state)}</span>
    </span>
  `;
}

const share = (value, max) => `${max > 0 ? Math.min(100, Math.max(0, (100 * value) / max)) : 0}%`;

/** A bar with segments [{value, colour, title}]: the shares of one device. `mark` is a second, measured
 value: hatched, to a line. */
export const Meter = ({ label, text, max, segments, mark = null }) => html`
  <div>
    <div class="between fine"><span>${label}</span><span class="number">${text}</span></div>
    <div class="meter-bar" role="img" aria-label="${label}: ${text}">
      ${segments.map((one) => html`<i title=${one.title} style=${{ width: share(one.value, max), background: one.colour }}></i>`)}
      ${mark === null ? null : html`<b style=${{ width: share(mark, max) }}></b>`}
    </div>
  </div>
`;

/** A bar of one ratio, whose numbers stand elsewhere. */
export const Ratio = ({ value, kind }) => html`<span class="meter-bar ${kind}"><i style=${{ width: share(value, 1) }}></i></span>`;

// Icons as paths of 16 × 16, drawn with the colour of the text beside them.
const PATHS = {
  fleet: "M2 3.500h12v3.500H2zM2 9h12v3.500H2zM4.500 5.250h.01M4.500 10.750h.01",
  queue: "M2.500 4h11M2.500 8h8M2.500 12h5",
  jobs: "M3 2.500h10v11H3zM5.500 6h5M5.500 8.500h5M5.500 11h3",
  functions: "M10 2.500c-2 0-2.300 1-2.600 2.700L6 13.500c-.200 1-.900 1.300-2 1.300M5 7h5.500",
  activity: "M1.500 9h3l2-5.500 3 9 2-5.500h3",
  settings: "M2.500 4.500h5M11.500 4.500h2M2.500 11.500h2M8.500 11.500h5M9.500 2.700v3.600M6.500 9.700v3.600",
  search: "M7 2.500a4.500 4.500 0 1 1 0 9 4.500 4.500 0 0 1 0-9zM10.500 10.500l3.500 3.500",
  sun: "M8 5a3 3 0 1 1 0 6 3 3 0 0 1 0-6zM8 1.200v1.600M8 13.200v1.600M1.200 8h1.600M13.200 8h1.600M3.200 3.200l1.100 1.100M11.700 11.700l1.100 1.100M3.200 12.800l1.100-1.100M11.700 4.300l1.100-1.100",
  moon: "M13.500 9.500A6 6 0 0 1 6.500 2.500a6 6 0 1 0 7 7z",
  auto: "M8 2.500a5.500 5.500 0 1 0 0 11zM8 2.500a5.500 5.500 0 0 1 0 11",
  close: "M4 4l8 8M12 4l-8 8",
  back: "M9.500 3.500L5 8l4.500 4.500",
  next: "M6 3.500L10.500 8 6 12.500",
  upload: "M8 10.500v-8M5 5l3-3 3 3M2.500 10.500v3h11v-3",
  download: "M8 2.500v8M5 7.500l3 3 3-3M2.500 11v2.500h11V11",
  retry: "M13 8a5 5 0 1 1-1.700-3.700M13 2v3h-3",
  stop: "M4 4h8v8H4z",
  leave: "M6.500 3H3v10h3.500M7 8h6.500M11 5.500L13.500 8 11 10.500",
  warm: "M8 1.800c.5 2.700 3.700 4 3.700 7.400A3.700 3.700 0 0 1 8 13.500a3.700 3.700 0 0 1-3.700-4c0-1.400.700-2.300 1.500-3 .2 1.200.8 1.700 1.400 1.800C6.900 5.600 7.200 3.400 8 1.800z",
  help: "M8 1.800a6.200 6.200 0 1 1 0 12.400A6.200 6.200 0 0 1 8 1.800zM6.200 6.300a1.900 1.900 0 1 1 2.700 1.800c-.6.300-.9.700-.9 1.300M8 11.400h.01",
  ring: "M8 3.500a4.500 4.500 0 1 1 0 9 4.500 4.500 0 0 1 0-9z",
  check: "M3.500 8.500l3 3 6-7",
  cross: "M4.500 4.500l7 7M11.500 4.500l-7 7",
  dash: "M4 8h8",
};

export const Icon = ({ name, size = 16 }) => html`
  <svg class="icon" width=${size} height=${size} viewBox="0 0 16 16" aria-hidden="true">
    <path d=${PATHS[name]} />
  </svg>
`;
