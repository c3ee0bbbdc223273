// Activity: what each device did over the last hour, and the figures of the papers over time.
import { count, duration, percent, shortId } from "../core/format.js";
import { colourOf, deployed } from "../core/deployed.js";
import { html, useMemo, useState } from "../core/html.js";
import { useNow, useResource } from "../core/resource.js";
import { href, route, setValues } from "../core/router.js";
import { useStore } from "../core/store.js";
import { Chart } from "../parts/chart.js";
import { Axis, SpanTable, Track, inRows, merged } from "../parts/gantt.js";
import { Choice, Empty, Page, Panel, Search, Waiting } from "../parts/page.js";
import { useNarrow, useWindow } from "../parts/table.js";

const RANGES = [["300", "5 min"], ["900", "15 min"], ["3600", "1 h"], ["21600", "6 h"], ["86400", "1 day"]];
const ROW_PX = 30;
const TABLE_SPANS_MAX = 500; // of the table beside the Gantt

const rate = (value) => (value == null ? "–" : `${value.toFixed(2)}/s`);

const latest = (values) => values.findLast((value) => value != null) ?? null;
const known = (values) => values.filter((value) => value != null);
const sum = (values) => known(values).reduce((total, value) => total + value, 0);
const mean = (values) => (known(values).length ? sum(values) / known(values).length : null);

// As the papers name them; `figure` is the one number of a series that stands above its chart.
const CHARTS = [
  { title: "Latency", text: duration, figure: latest, of: "latest medians",
    note: "RLat: upload to end. DLat: upload to the begin of the session on the device. ELat: from there to the end of the lease.", series: [
    { label: "RLat", name: "rlat", colour: "--series-1" },
    { label: "DLat", name: "dlat", colour: "--series-2" },
    { label: "ELat", name: "elat", colour: "--series-3" }] },
  { title: "RFast", text: rate, figure: mean, of: "mean", note: "Jobs that succeeded per second.", series: [{ label: "RFast", name: "rfast", colour: "--series-4" }] },
  { title: "Starts", text: count, figure: sum, of: "in all",
    note: "Cold: the worker loaded its models first. Warm: one that had them took the job.", series: [
    { label: "Cold starts", name: "cold_starts", colour: "--series-2" },
    { label: "Warm starts", name: "warm_starts", colour: "--series-4" }] },
  { title: "Utilisation", text: (value) => percent(value == null ? null : 100 * value), max: 1, figure: mean, of: "mean",
    note: "Time of all devices in which at least one lease held them.", series: [{ label: "Utilisation", name: "utilisation", colour: "--series-6" }] },
];

const HOSTS = { title: "Hosts", text: (value) => (value == null ? "–" : value.toFixed(1)), figure: latest, of: "now",
  note: "Hosts that come and go, with leases and waiting requests: means over time.", series: [
    { label: "Hosts", name: "hosts", colour: "--series-1" },
    { label: "Leases", name: "leases", colour: "--series-2" },
    { label: "Waiting requests", name: "waiting", colour: "--series-3" }] };

export function ActivityView() {
  const { values } = useStore(route);
  const since_s = Number(values.since_s ?? 3600);
  const { data, error } = useResource(`/activity?since_s=${since_s}`, { kinds: ["lease"], every_s: 15 });
  return html`
    <${Page} title="Activity" error=${error} controls=${html`
      <${Choice} label="Time" value=${String(since_s)} options=${RANGES} onChoose=${(one) => setValues({ since_s: one })} />
      <${Search} label="Device" value=${values.q ?? ""} onInput=${(q) => setValues({ q })} />
    `}>
      ${!data && !error && html`<${Waiting} />`}
      ${data && html`
        <div class="activity stack">
          <${Devices} devices=${data.devices} total=${data.devices_total} since_s=${since_s} q=${values.q ?? ""} />
          <div class="tiles" style=${{ "--tile": "420px" }}>
            ${CHARTS.map((chart) => html`<${Series} key=${chart.title} chart=${chart} series=${data.series} />`)}
            ${data.hosts && html`<${Series} chart=${HOSTS} series=${{ ...data.hosts, time_s: data.series.time_s }} />`}
          </div>
        </div>`}
    <//>
  `;
}

function Series({ chart, series }) {
  const lines = useMemo(
    () => chart.series.map((one) => ({ ...one, values: series[one.name] ?? [] })), [series]);
  if (!series.time_s?.length || lines.every((one) => !one.values.some((value) => value != null))) {
    return html`<figure class="chart panel"><figcaption class="row inset"><h3>${chart.title}</h3><p class="fine">${chart.note}</p></figcaption><${Empty} title="No job ended in this time." /></figure>`;
  }
  return html`<${Chart} ...${chart} time_s=${series.time_s} series=${lines} />`;
}

function Devices({ devices, total, since_s, q }) {
  const to_s = useNow(5000);
  const from_s = to_s - since_s;
  const narrow = useNarrow();
  useStore(deployed); // the colours of spans
  const [by, setBy] = useState("function");
  const rows = useMemo(() => devices
    .filter((one) => `${one.device} ${one.model}`.toLowerCase().includes(q.toLowerCase()))
    .sort((a, b) => a.device.localeCompare(b.device, "en", { numeric: true })), [devices, q]);
  const { ref, first, last } = useWindow(ROW_PX, rows.length);
  const range = { from_s, to_s, wanted: narrow ? 3 : 8 };
  return html`
    <${Panel} title="Devices" aside=${html`
      <span class="muted text">${count(rows.length)}${total > devices.length && ` of ${count(total)}, those that were used longest`}</span>
      <${Choice} label="Colour of a span" value=${by} options=${[["function", "By function"], ["tenant", "By tenant"], ["cold", "By start"]]} onChoose=${setBy} />`}>
      ${rows.length === 0 ? html`<${Empty} title="No device ran a job in this time." />` : html`
        <${SpanKey} rows=${rows} by=${by} />
        <div class="gantt"><span></span><${Axis} ...${range} /></div>
        <div class="gantt-rows scroller" ref=${ref} tabIndex="0" role="region" aria-label="Rows of devices"
          style=${{ height: `${Math.min(rows.length, 14) * ROW_PX}px` }}>
          <div style=${{ height: `${rows.length * ROW_PX}px` }}>
            <div class="gantt" style=${{ transform: `translateY(${first * ROW_PX}px)` }}>
              ${rows.slice(first, last).map((row) => html`
                <span class="gantt-label cut" title="${row.device} ${row.model}" key=${`${row.device} label`}>${row.device} <small class="desk">${row.model}</small></span>
                <${Track} key=${row.device} spans=${spansOf(row, by, from_s, to_s)} ...${range} />`)}
            </div>
          </div>
        </div>
        <${SpanTable} label="Devices" lanes=${tableLanes(rows.slice(first, last))} />`}
    <//>
  `;
}

const NAMED_MAX = 8; // of the colours' names: as many as there are colours

/** Names of the colours of the spans, the most frequent ones. */
function SpanKey({ rows, by }) {
  const functions = useStore(deployed);
  const names = useMemo(() => {
    const found = new Map();
    for (const span of rows.flatMap((row) => row.spans)) {
      const name = NAMES[by](span);
      found.set(name, { colour: COLOURS[by](span), spans: (found.get(name)?.spans ?? 0) + 1 });
    }
    return [...found].sort(([, a], [, b]) => b.spans - a.spans);
  }, [rows, by, functions]);
  return html`
    <p class="legend pad row fine">
      ${names.slice(0, NAMED_MAX).map(([name, { colour }]) => html`<span key=${name}><i class="mark" style=${{ background: colour }}></i>${name}</span>`)}
      ${names.length > NAMED_MAX && html`<span>and ${names.length - NAMED_MAX} more</span>`}
      ${by !== "cold" && html`<span><i class="mark cold"></i>cold start</span>`}
    </p>`;
}

const NAMES = {
  function: (span) => span.function ?? "function of another tenant",
  tenant: (span) => span.tenant ?? "no tenant",
  cold: (span) => (span.cold ? "cold start" : "warm start"),
};

const COLOURS = {
  function: (span) => colourOf("function", span.function),
  tenant: (span) => colourOf("tenant", span.tenant),
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
