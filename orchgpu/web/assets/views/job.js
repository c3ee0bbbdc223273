// One job from upload to result: its state, timeline, logs, outputs and cost.
import { post } from "../core/api.js";
import { capital, duration, fileName, mebibytes, moment, percent, shortId, words } from "../core/format.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { announce, attempt } from "../core/notices.js";
import { hasReason, meaningOf } from "../core/reasons.js";
import { useNow, useResource } from "../core/resource.js";
import { href } from "../core/router.js";
import { Confirm } from "../parts/dialog.js";
import { Icon } from "../parts/icons.js";
import { Empty, Facts, Page, Waiting } from "../parts/page.js";
import { State, isEnded } from "../parts/state.js";
import { Logs } from "./job_logs.js";
import { Outputs } from "./job_outputs.js";
import { Timeline } from "./job_timeline.js";

export function JobView({ id }) {
  const path = `/jobs/${encodeURIComponent(id)}`;
  const { data: job, error, reload } = useResource(path, { kinds: ["job", "lease", "queue"] });
  useAnnouncedState(job);
  const crumbs = html`<a class="crumb" href=${href("jobs")}><${Icon} name="back" /> Jobs</a>`;
  if (!job) {
    return html`
      <${Page} title="Job" crumbs=${crumbs}>
        ${error ? html`<${Empty} title=${error.message}>${error.hint}<//>` : html`<${Waiting} />`}
      <//>`;
  }
  return html`
    <${Page} title=${fileName(job.key) || id} crumbs=${crumbs} error=${error}
      aside=${html`<${State} state=${job.state} />`}
      controls=${html`<${Actions} job=${job} path=${path} onDone=${reload} />`}>
      <div class="job">
        <${Story} job=${job} />
        <${JobFacts} job=${job} />
        <${Timeline} job=${job} />
        <div class="columns">
          <${Logs} key=${`${id} ${job.attempt}`} path=${path} ended=${isEnded(job.state)} />
          <div>
            <${Outputs} path=${path} state=${job.state} />
            <${Cost} path=${path} state=${job.state} />
          </div>
        </div>
      </div>
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
  const [asked, setAsked] = useState(null);
  const act = async (name, success) => {
    if (await attempt(() => post(`${path}/${name}`), success)) onDone();
  };
  const cancel = () => setAsked({
    title: "Cancel this job?", text: "Its lease is revoked, and what it computed so far is lost.",
    action: "Cancel the job", danger: true, act: () => act("cancel", "The job is being cancelled."),
  });
  return html`
    ${job.may_retry && job.may_change && html`<button type="button" onClick=${() => act("retry", "The job begins a new run.")}><${Icon} name="retry" /> Retry</button>`}
    ${!isEnded(job.state) && job.may_change && html`<button type="button" onClick=${cancel}><${Icon} name="stop" /> Cancel</button>`}
    <${Confirm} asked=${asked} onClose=${() => setAsked(null)} />
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
    <div class="story panel ${bad(job) ? "bad" : ""}">
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
    <details>
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
      ["Input", job.key ? html`<span class="break">${job.bucket}/${job.key}</span>` : "–"],
      ["Device", job.device ?? "–"],
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
    <span class="attempt" title=${one.detail}> ${one.attempt}: ${words(one.reason)}</span>`)}
`;

// Cost of one job that succeeded, alone on its device and shared, by the prices that the server states.
const money = (usd) => `${usd.toFixed(6)} USD`;

export function Cost({ path, state }) {
  const { data } = useResource(state === "SUCCEEDED" ? `${path}/cost` : null);
  if (!data) return null;
  const parts = [["Function", data.function_usd], ["Device", data.device_usd]];
  return html`
    <section class="panel cost" aria-label="Cost">
      <header class="panel-head"><h2>Cost</h2><span class="number">${money(data.total_usd)}</span>
        <span class="muted">${duration(data.ran_s)}, ${mebibytes(data.memory_mib)} of the function</span></header>
      <table class="table plain"><tbody>
        ${parts.map(([name, usd]) => html`<tr key=${name}><th scope="row">${name}</th><td class="end number">${money(usd)}</td></tr>`)}
        ${data.sharers.filter((one) => one.sharers > 1).map((one) => html`
          <tr key=${one.sharers}><th scope="row">In total, with ${one.sharers} jobs on the device</th><td class="end number">${money(one.total_usd)}</td></tr>`)}
      </tbody></table>
    </section>
  `;
}
