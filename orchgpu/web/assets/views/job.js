// One job from upload to result: its state, timeline, logs, outputs and cost.
import { post, urlOf } from "../core/api.js";
import { bytes, capital, duration, fileName, inputOf, mebibytes, moment, percent, shortId, words } from "../core/format.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { announce, attempt } from "../core/notices.js";
import { hasReason, meaningOf } from "../core/reasons.js";
import { useNow, useResource } from "../core/resource.js";
import { href } from "../core/router.js";
import { confirm } from "../parts/dialog.js";
import { Axis, SpanTable, Track } from "../parts/gantt.js";
import { Empty, ErrorLine, Facts, Page, Panel, Waiting } from "../parts/page.js";
import { Icon, State, isEnded, toned } from "../parts/state.js";
import { Table, useNarrow } from "../parts/table.js";
import { Logs } from "./job_logs.js";

export function JobView({ id }) {
  const path = `/jobs/${encodeURIComponent(id)}`;
  const { data: job, error, reload } = useResource(path, { kinds: ["job", "lease", "queue"] });
  useAnnouncedState(job);
  return html`
    <${Page} title=${fileName(job && inputOf(job)) || (job ? id : "Job")} parent=${["jobs", "Jobs"]} error=${error}
      aside=${job && html`<${State} state=${job.state} />`}
      controls=${job && html`<${Actions} job=${job} path=${path} onDone=${reload} />`}>
      ${!job ? !error && html`<${Waiting} />` : html`
        <div class="job stack">
          <${Story} job=${job} />
          <${JobFacts} job=${job} />
          <${Timeline} job=${job} />
          <div class="columns">
            <${Logs} key=${`${id} ${job.attempt}`} path=${path} ended=${isEnded(job.state)} />
            <div class="stack">
              <${Outputs} path=${path} state=${job.state} />
              <${Cost} path=${path} state=${job.state} />
            </div>
          </div>
        </div>`}
    <//>
  `;
}

function useAnnouncedState(job) {
  const before = useRef(null);
  useEffect(() => {
    if (before.current && job && before.current !== job.state) announce(`The job is ${words(job.state)}.`);
    before.current = job?.state ?? null;
  }, [job?.state]);
}

function Actions({ job, path, onDone }) {
  const act = async (name, success) => {
    if (await attempt(() => post(`${path}/${name}`), success)) onDone();
  };
  const cancel = () => confirm({
    title: "Cancel this job?", text: "Its lease is revoked, and what it computed so far is lost.",
    action: "Cancel the job", danger: true, act: () => act("cancel", "The job is being cancelled."),
  });
  return html`
    ${job.may_retry && job.may_change && html`<button type="button" onClick=${() => act("retry", "The job begins a new run.")}><${Icon} name="retry" /> Retry</button>`}
    ${!isEnded(job.state) && job.may_change && html`<button type="button" onClick=${cancel}><${Icon} name="stop" /> Cancel</button>`}
  `;
}

/** Why the job waits or how it ended, in one sentence of the scheduler or the result. */
function Story({ job }) {
  const { explain, result } = job;
  const text = explain?.text || result?.detail || lastOf(job.attempts)?.detail;
  const tail = bad(job) ? result?.log_tail || lastOf(job.attempts)?.log_tail : "";
  const reason = hasReason(job.reason) ? words(job.reason) : null;
  if (!text && !reason) return null;
  return html`
    <div class="story panel message" style=${toned(bad(job) ? "bad" : "wait")}>
      ${reason && html`<strong title=${meaningOf(job.reason)}>${reason}</strong>`}
      ${text && html`<p>${capital(text)}</p>`}
      ${explain?.expected_s != null && html`<p>A device is expected within <b class="number">${duration(explain.expected_s)}</b>.</p>`}
      <${Blocking} leases=${explain?.blocking ?? []} total=${explain?.blocking_total} />
      ${tail && html`<pre tabIndex="0" aria-label="Last lines of the script">${tail.trim()}</pre>`}
    </div>`;
}

/** The leases that a job waits for, those that end soonest. */
const Blocking = ({ leases, total }) =>
  leases.length > 0 && html`
    <details class="muted">
      <summary>Leases on the devices that it could use: ${total}</summary>
      <ul>${leases.map((one) => html`
        <li key=${`${one.lease} ${one.index}`}>
          <a class="mono" href=${href("jobs", jobOf(one))} title=${jobOf(one)}>${shortId(jobOf(one))}</a> on ${one.host}/${one.index},
          ${" "}${mebibytes(one.memory_mib)}, ${percent(one.compute_pct)} of compute,
          ${" "}${one.ends_in_s == null ? "of no stated length" : html`ends within <span class="number">${duration(one.ends_in_s)}</span>`}</li>`)}
        ${total > leases.length && html`<li class="muted">and ${total - leases.length} more</li>`}
      </ul>
    </details>`;

const jobOf = ({ attempt }) => attempt.replace(/:\d+$/, "");

const bad = (job) => job.state === "FAILED" || job.state === "REJECTED";

const lastOf = (list) => list?.[list.length - 1];

function JobFacts({ job }) {
  return html`
    <${Facts} facts=${[
      ["Job", html`<span class="mono break">${job.job}</span>`],
      ["Function", job.function && html`<a href=${href("functions", job.function)}>${job.function}</a>`],
      job.run && ["Run", html`<a class="mono" href=${href("runs", job.run)} title=${job.run}>${shortId(job.run)}</a>, step ${job.step}`],
      ["Input", job.key ? html`<span class="break">${inputOf(job)}</span>` : "–"],
      ["Device", job.device ?? "–"],
      job.place && ["Runs in", job.place],
      job.promise && ["Promise", job.promise],
      ["Attempt", html`<${Attempts} job=${job} />`],
      ["Received", moment(job.received_s)],
      [isEnded(job.state) ? "Duration" : "Age", html`<${Elapsed} job=${job} />`],
    ]} />
  `;
}

function Elapsed({ job }) {
  const now_s = useNow();
  const end_s = isEnded(job.state) ? job.changed_s : now_s;
  return html`<span class="number">${duration(Math.max(0, end_s - job.received_s))}</span>`;
}

const Attempts = ({ job }) => html`
  <span class="number">${job.attempt || "–"}</span>
  ${(job.attempts ?? []).filter((one) => one.reason && one.reason !== "NONE").map((one) => html`
    <div class="fine" title=${one.detail}>${one.attempt}: ${words(one.reason)}</div>`)}
`;

// Cost of one job that succeeded, alone on its device and shared, by the prices that the server states.
const money = (usd) => `${usd.toFixed(6)} USD`;

const COST_COLUMNS = [
  { head: true, cell: ([name]) => name },
  { kind: "number", cell: ([, usd]) => money(usd) },
];

export function Cost({ path, state }) {
  const { data } = useResource(state === "SUCCEEDED" ? `${path}/cost` : null);
  if (!data) return null;
  const shared = data.sharers.filter((one) => one.sharers > 1);
  const parts = [["Function", data.function_usd], ["Device", data.device_usd],
    ...shared.map((one) => [`In total, with ${one.sharers} jobs on the device`, one.total_usd])];
  return html`
    <${Panel} title="Cost" aside=${html`<span class="number text">${money(data.total_usd)}</span>
      <span class="muted text">${duration(data.ran_s)}, ${mebibytes(data.memory_mib)} of the function</span>`}>
      <${Table} label="Parts of the cost" rows=${parts} columns=${COST_COLUMNS} />
    <//>
  `;
}

// Outputs of one job: a preview of text and images, a download of everything.
const TEXT_MAX = 64 * 1024; // characters of a preview

export function Outputs({ path, state }) {
  // another state is another address for the hook: outputs appear when the job ends
  const { data, error } = useResource(isEnded(state) ? `${path}/outputs` : null);
  const items = data?.items ?? [];
  return html`
    <${Panel} title="Outputs" name="outputs" aside=${`${items.length || ""}`}>
      ${error && html`<${ErrorLine} error=${error} />`}
      ${items.length === 0 && !error && html`<${Empty} title=${isEnded(state) ? "The job has no output." : "Outputs appear when the job has ended."} />`}
      <ul>${items.map((item, index) => html`<${Output} key=${item.name} ...${item} address=${`${urlOf(path)}/outputs/${index}`} />`)}</ul>
    <//>
  `;
}

function Output({ name, bytes: size, type, preview, address }) {
  return html`
    <li class="entry">
      <p class="row"><span class="break" title=${name}>${fileName(name) || name}</span><span class="muted number">${bytes(size)}</span>
        <a class="push" href=${`${address}?download=1`} download=${fileName(name)} aria-label="Download ${name}" title=${type}><${Icon} name="download" /></a></p>
      ${preview === "image" && html`<a href=${address} target="_blank" rel="noreferrer"><img src=${address} alt="Output ${name}" loading="lazy" /></a>`}
      ${preview === "text" && html`<${TextPreview} address=${address} name=${name} />`}
    </li>
  `;
}

function TextPreview({ address, name }) {
  const [text, setText] = useState(null);
  useEffect(() => {
    const control = new AbortController();
    readText(address, control.signal).then(setText, (error) => {
      if (error.name !== "AbortError") setText(`(no preview: ${error.message})`);
    });
    return () => control.abort();
  }, [address]);
  return text === null ? null : html`<pre tabIndex="0" aria-label="Content of ${name}">${text}</pre>`;
}

async function readText(address, signal) {
  const response = await fetch(address, { signal, credentials: "same-origin" });
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  const text = await response.text();
  return text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}\n… (download it for the rest)` : text;
}

// The timeline of one job: queue, scheduler, function and device as lanes of a Gantt.
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
    <${Panel} title="Timeline" name="timeline" aside=${html`<span class="muted text">${duration(to_s - from_s)}</span>
      ${latencies(job).map(([name, text]) => html`<span class="muted text" key=${name}><abbr title=${MEANINGS[name]}>${name}</abbr> <b class="number">${text}</b></span>`)}`}>
      <div class="gantt">
        <span></span><${Axis} ...${range} />
        ${lanes.map((lane) => html`
          <span class="gantt-label cut">${lane.label}</span>
          <${Track} key=${lane.lane} spans=${lane.spans} ...${range} />
        `)}
      </div>
      <${SpanTable} label="Timeline" lanes=${lanes} relative_s=${from_s} />
    <//>
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
