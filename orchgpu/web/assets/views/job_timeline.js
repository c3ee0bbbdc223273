// The timeline of one job: queue, scheduler, function and device as lanes of a Gantt.
import { duration, words } from "../core/format.js";
import { html } from "../core/html.js";
import { useNow } from "../core/resource.js";
import { Axis, SpanTable, Track } from "../parts/gantt.js";
import { isEnded } from "../parts/state.js";
import { useNarrow } from "../parts/virtual.js";

const LANES = [
  { lane: "queue", label: "Queue", colour: "var(--wait)" },
  { lane: "scheduler", label: "Scheduler", colour: "var(--held)" },
  { lane: "function", label: "Function", colour: "var(--series-4)" },
  { lane: "device", label: "Device", colour: "var(--run)" },
];

const MEANINGS = {
  RLat: "from the upload to the end",
  DLat: "from the upload to the begin of the session on the device",
  ELat: "from the begin of the session to the end of the lease",
};

export function Timeline({ job }) {
  const ended = isEnded(job.state);
  const now_s = useNow(ended ? 60000 : 500);
  const narrow = useNarrow();
  const spans = job.timeline ?? [];
  if (!spans.length) return null;
  const from_s = Math.min(...spans.map((span) => span.start_s));
  const last_s = Math.max(...spans.map((span) => span.end_s ?? span.start_s));
  const to_s = ended ? last_s : Math.max(last_s, now_s);
  const margin_s = Math.max((to_s - from_s) * 0.02, 0.001);
  const lanes = LANES.map((lane) => ({ ...lane, spans: spansOf(lane, spans, to_s) })).filter(
    (lane) => lane.spans.length,
  );
  const range = { from_s, to_s: to_s + margin_s, relative: true, wanted: narrow ? 3 : 8 };
  return html`
    <section class="panel timeline" aria-label="Timeline">
      <header class="panel-head"><h2>Timeline</h2><span class="muted number">${duration(to_s - from_s)}</span>
        ${latencies(job).map(([name, text]) => html`<span class="muted" key=${name}><abbr title=${MEANINGS[name]}>${name}</abbr> <b class="number">${text}</b></span>`)}</header>
      <div class="gantt">
        <span></span><${Axis} ...${range} />
        ${lanes.map((lane) => html`
          <span class="gantt-label">${lane.label}</span>
          <${Track} key=${lane.lane} spans=${lane.spans} ...${range} />
        `)}
      </div>
      <${SpanTable} lanes=${lanes} relative_s=${from_s} />
    </section>
  `;
}

/** RLat, DLat and ELat, as the papers name them, as far as they are known. */
const latencies = ({ latencies: found }) =>
  Object.entries(found ?? {})
    .filter(([, value]) => value !== null)
    .map(([name, value]) => [name.replace(/_s$/, "").replace(/^(\w)lat$/i, (_all, letter) => `${letter.toUpperCase()}Lat`), duration(value)]);

function spansOf({ lane, colour }, spans, to_s) {
  const retried = spans.some((span) => span.attempt > 1);
  return spans
    .filter((span) => span.lane === lane)
    .map((span) => {
      const label = `${words(span.name)}${retried && span.attempt ? ` (${span.attempt})` : ""}`;
      const open = span.end_s === null || span.end_s === undefined;
      const length = duration((span.end_s ?? to_s) - span.start_s);
      return { ...span, label, colour, open, hatched: /cold/i.test(span.name),
               title: `${label}: ${length}${open ? " so far" : ""}` };
    });
}
