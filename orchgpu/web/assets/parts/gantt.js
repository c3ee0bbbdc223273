// Gantt charts as plain HTML: rows of spans over one axis of time.
import { html } from "../core/html.js";
import { clock, duration, moment } from "../core/format.js";
import { AsTable } from "./table.js";

const STEPS_S = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 86400];

/** Times of about `wanted` round ticks between two moments. */
export function ticks(from_s, to_s, wanted = 6, zero_s = 0) {
  const step_s = STEPS_S.find((step) => (to_s - from_s) / step <= wanted) ?? (to_s - from_s) / wanted;
  const found = [];
  const first = Math.ceil((from_s - zero_s) / step_s);
  for (let index = first; zero_s + index * step_s <= to_s; index += 1) found.push(zero_s + index * step_s);
  return found;
}

const place = (time_s, from_s, to_s) =>
  Math.min(100, Math.max(0, (100 * (time_s - from_s)) / (to_s - from_s || 1)));

/** The axis; `relative` counts from the beginning, else it shows the clock. */
export function Axis({ from_s, to_s, relative = false, wanted = 6 }) {
  return html`
    <div class="gantt-axis" aria-hidden="true">
      ${ticks(from_s, to_s, wanted, relative ? from_s : 0).map((time_s) => html`
        <span style=${{ left: `${place(time_s, from_s, to_s)}%` }}>
          ${relative ? (time_s === from_s ? "0" : duration(time_s - from_s)) : clock(time_s).slice(0, to_s - from_s < 600 ? 8 : 5)}
        </span>
      `)}
    </div>
  `;
}

/** One row of spans [{start_s, end_s, label, title, colour, href, open, hatched}]. */
export function Track({ spans, from_s, to_s, wanted = 6, relative = false }) {
  return html`
    <div class="gantt-track">
      ${ticks(from_s, to_s, wanted, relative ? from_s : 0).map((time_s) => html`
        <i class="gantt-line" style=${{ left: `${place(time_s, from_s, to_s)}%` }}></i>
      `)}
      ${spans.map((span) => html`<${Span} key=${`${span.row} ${span.start_s} ${span.label}`} ...${span} from_s=${from_s} to_s=${to_s} />`)}
    </div>
  `;
}

const SPAN_PX = 22; // height of a span that has its track alone

function Span({ start_s, end_s, label, title, colour, href, open, hatched, row = 0, rows = 1, from_s, to_s }) {
  const left = place(start_s, from_s, to_s);
  const right = place(end_s ?? to_s, from_s, to_s);
  const style = { left: `${left}%`, width: `max(3px, ${right - left}%)`, "--span": colour,
                  top: `${4 + (row * SPAN_PX) / rows}px`, height: `${SPAN_PX / rows - (rows > 1 ? 1 : 0)}px` };
  const kind = `gantt-span${open ? " open" : ""}${hatched ? " hatched" : ""}`;
  // A span too short for its label has it in the tooltip and in the table only.
  const text = right - left > 4 && rows === 1 ? html`<span class="cut">${label}</span>` : null;
  return href
    ? html`<a class=${kind} style=${style} title=${title} aria-label=${title} href=${href}>${text}</a>`
    : html`<span class=${kind} style=${style} title=${title}>${text}</span>`;
}

const ROWS_MAX = 4; // of one track; more spans at the same time cover one another

/** Spans at the same time, as leases that share a device, in rows: the first row that is free. */
export function inRows(spans) {
  const rows = [];
  for (const span of spans) {
    const free = rows.findIndex((row) => (row[row.length - 1].end_s ?? Infinity) <= span.start_s);
    if (free >= 0) rows[free].push(span);
    else if (rows.length < ROWS_MAX) rows.push([span]);
    else rows[ROWS_MAX - 1].push(span);
  }
  return rows;
}

/** Spans closer together than a pixel become one: a row of an hour has at most some hundred. */
export function merged(spans, from_s, to_s, resolution = 400) {
  const gap_s = (to_s - from_s) / resolution;
  const result = [];
  for (const span of spans) {
    const end_s = span.end_s ?? to_s;
    const last = result[result.length - 1];
    const short = end_s - span.start_s < gap_s && last && last.end_s - last.start_s < gap_s * 4;
    if (short && span.start_s - last.end_s < gap_s) {
      last.end_s = Math.max(last.end_s, end_s);
      last.jobs += 1;
    } else {
      result.push({ ...span, end_s, jobs: 1 });
    }
  }
  return result;
}

/** The same spans as a table. */
export function SpanTable({ label, lanes, relative_s = null }) {
  const columns = [
    { label: "Lane", head: true, cell: ({ lane }) => lane.label },
    { label: "Span", cell: ({ span }) => span.label },
    { label: "Start", cell: ({ span }) => (relative_s === null ? moment(span.start_s) : `+${duration(span.start_s - relative_s)}`) },
    { label: "Duration", cell: ({ span }) => (span.end_s ? duration(span.end_s - span.start_s) : "continues") },
  ];
  return html`<${AsTable} label=${label} columns=${columns} rows=${lanes.flatMap((lane) => lane.spans.map((span) => ({ lane, span })))} />`;
}
