// Activity: what each device did over the last hour, and the figures of the papers over time.
import { colourOf, count, duration, percent, shortId } from "../core/format.js";
import { html, useMemo, useState } from "../core/html.js";
import { useNow, useResource } from "../core/resource.js";
import { href, route, setValues } from "../core/router.js";
import { useStore } from "../core/store.js";
import { Chart } from "../parts/chart.js";
import { Axis, SpanTable, Track, inRows, merged } from "../parts/gantt.js";
import { Choice, Empty, Page, Search, Waiting } from "../parts/page.js";
import { useNarrow, useWindow } from "../parts/virtual.js";

const RANGES = [["900", "15 min"], ["3600", "1 h"], ["21600", "6 h"], ["86400", "1 day"]];
const ROW_PX = 30;
const TABLE_SPANS_MAX = 500; // of the table beside the Gantt

const rate = (value) => (value == null ? "–" : `${value.toFixed(2)}/s`);

// As the papers name them. RFast: successes per second; RLat: upload to the end, DLat: upload to
// the session's begin, ELat: from there to the release of the devices; each a median.
const CHARTS = [
  { title: "Latency", text: duration, series: [
    { label: "RLat", name: "rlat", colour: "--series-1" },
    { label: "DLat", name: "dlat", colour: "--series-2" },
    { label: "ELat", name: "elat", colour: "--series-3" }] },
  { title: "RFast", text: rate, series: [{ label: "RFast", name: "rfast", colour: "--series-4" }] },
  { title: "Starts", text: count, series: [
    { label: "Cold starts", name: "cold_starts", colour: "--series-2" },
    { label: "Warm starts", name: "warm_starts", colour: "--series-4" }] },
  { title: "Utilisation", text: (value) => percent(value == null ? null : 100 * value), max: 1,
    series: [{ label: "Utilisation", name: "utilisation", colour: "--series-6" }] },
];

export function ActivityView() {
  const { values } = useStore(route);
  const since_s = Number(values.since_s ?? 3600);
  const { data, error } = useResource(`/activity?since_s=${since_s}`, { kinds: ["lease"], every_s: 15 });
  if (error && !data) {
    return html`<${Page} title="Activity"><${Empty} title=${error.message}>The other views show the present.<//><//>`;
  }
  return html`
    <${Page} title="Activity" error=${error} controls=${html`
      <${Choice} label="Time" value=${String(since_s)} options=${RANGES} onChoose=${(one) => setValues({ since_s: one })} />
      <${Search} label="Device" value=${values.q ?? ""} onInput=${(q) => setValues({ q })} />
    `}>
      ${!data && !error && html`<${Waiting} />`}
      ${data && html`
        <div class="activity">
          <${Devices} devices=${data.devices} total=${data.devices_total} since_s=${since_s} q=${values.q ?? ""} />
          <div class="charts">
            ${CHARTS.map((chart) => html`<${Series} key=${chart.title} chart=${chart} series=${data.series} />`)}
          </div>
        </div>`}
    <//>
  `;
}

function Series({ chart, series }) {
  const lines = useMemo(
    () => chart.series.map((one) => ({ ...one, values: series[one.name] ?? [] })), [series]);
  if (!series.time_s?.length || lines.every((one) => !one.values.some((value) => value != null))) {
    return html`<figure class="chart panel"><figcaption><h3>${chart.title}</h3></figcaption><${Empty} title="No job ended in this time." /></figure>`;
  }
  return html`<${Chart} title=${chart.title} time_s=${series.time_s} series=${lines} text=${chart.text} max=${chart.max ?? null} />`;
}

function Devices({ devices, total, since_s, q }) {
  const to_s = useNow(5000);
  const from_s = to_s - since_s;
  const narrow = useNarrow();
  const [by, setBy] = useState("function");
  const rows = useMemo(() => devices.filter((one) => one.device.toLowerCase().includes(q.toLowerCase())), [devices, q]);
  const { ref, first, last } = useWindow(ROW_PX, rows.length);
  const range = { from_s, to_s, wanted: narrow ? 3 : 8 };
  return html`
    <section class="panel" aria-label="Devices over time">
      <header class="panel-head"><h2>Devices</h2><span class="muted">${count(rows.length)}${total > devices.length && ` of ${count(total)}, those that were used longest`}</span>
        <${Choice} label="Colour of a span" value=${by} options=${[["function", "By function"], ["tenant", "By tenant"], ["cold", "By start"]]} onChoose=${setBy} />
      </header>
      ${rows.length === 0 ? html`<${Empty} title="No device ran a job in this time." />` : html`
        <div class="gantt wide-labels head"><span></span><${Axis} ...${range} /></div>
        <div class="gantt-rows" ref=${ref} tabIndex="0" role="region" aria-label="Rows of devices"
          style=${{ height: `${Math.min(rows.length, 14) * ROW_PX}px` }}>
          <div class="gantt-space" style=${{ height: `${rows.length * ROW_PX}px` }}>
            <div class="gantt wide-labels" style=${{ transform: `translateY(${first * ROW_PX}px)` }}>
              ${rows.slice(first, last).map((row) => html`
                <span class="gantt-label" title=${row.device} key=${`${row.device} label`}>${row.device}</span>
                <${Track} key=${row.device} spans=${spansOf(row, by, from_s, to_s)} ...${range} />`)}
            </div>
          </div>
        </div>
        <${SpanTable} lanes=${tableLanes(rows.slice(first, last))} />`}
    </section>
  `;
}

const COLOURS = {
  function: (span) => colourOf(span.function),
  tenant: (span) => colourOf(span.tenant),
  cold: (span) => (span.cold ? "var(--series-2)" : "var(--run)"),
};

function spansOf(row, by, from_s, to_s) {
  const visible = row.spans.filter((span) => (span.end_s ?? to_s) > from_s);
  const ordered = [...visible].sort((a, b) => a.start_s - b.start_s);
  const rows = inRows(ordered);
  return rows.flatMap((spans, at) => merged(spans, from_s, to_s).map((span) => ({
    ...span,
    row: at,
    rows: rows.length,
    label: span.jobs > 1 ? `${span.jobs} jobs` : (span.function ?? shortId(span.job)),
    title: span.jobs > 1
      ? `${span.jobs} jobs in ${duration(span.end_s - span.start_s)}`
      : `${span.function ?? ""} ${shortId(span.job)}, ${span.tenant ?? "no tenant"}: ${duration(span.end_s - span.start_s)}${span.cold ? ", cold start" : ""}`,
    colour: COLOURS[by](span),
    href: span.jobs === 1 && span.job ? href("jobs", span.job) : null,
    hatched: span.cold && span.jobs === 1,
  })));
}

function tableLanes(rows) {
  let left = TABLE_SPANS_MAX;
  return rows.map((row) => {
    const spans = row.spans.slice(-Math.max(0, left)).map((span) => ({ ...span, label: `${span.function ?? ""} ${shortId(span.job)}` }));
    left -= spans.length;
    return { label: row.device, spans: left + spans.length > 0 ? spans : [] };
  });
}
