// Jobs, newest first: live states, filters, search by id, key or function.
import { post, session, urlOf, withQuery } from "../core/api.js";
import { deployed } from "../core/deployed.js";
import { about, ago, count, duration, fileName, inputOf, moment, plural, shortId, words } from "../core/format.js";
import { hasReason, meaningOf } from "../core/reasons.js";
import { html, useEffect, useMemo, useState } from "../core/html.js";
import { notify } from "../core/notices.js";
import { useNow, usePages, useResource } from "../core/resource.js";
import { go, href, route, setValues } from "../core/router.js";
import { useStore } from "../core/store.js";
import { confirm } from "../parts/dialog.js";
import { Choice, Cut, Empty, ErrorLine, Listed, Page, Search } from "../parts/page.js";
import { STATES, State, isEnded } from "../parts/state.js";
import { EndlessTable, useNarrow } from "../parts/table.js";
import { Letters } from "./letters.js";

const COLUMNS = [
  { label: "State", sort: "state", width: "116px", cell: (job) => html`<${State} state=${job.state} />` },
  { label: "Job", sort: "input", cell: (job) => html`<${Input} job=${job} />` },
  { label: "Function", sort: "function", wide: true, width: "14%", cell: (job) => html`<${Cut} text=${job.function} />` },
  { label: "Tenant", sort: "tenant", wide: true, width: "92px", cell: (job) => html`<${Cut} text=${job.tenant} />` },
  { label: "Reason", sort: "reason", wide: true, width: "12%", cell: (job) => html`<${Reason} job=${job} />` },
  { label: "Device", sort: "device", wide: true, width: "84px", cell: (job) => html`<span title=${job.device}>${(job.device ?? "").split(" ")[0]}</span>` },
  { label: "Try", sort: "attempt", wide: true, kind: "number", width: "52px", cell: (job) => job.attempt || "–" },
  { label: html`<span class="desk">Submitted</span><span class="phone">Since</span>`, key: "submitted", sort: "submitted", kind: "end", width: "102px", narrow: "76px", cell: (job) => html`<${Age} time_s=${submittedOf(job)} />` },
  { label: "Duration", sort: "duration", wide: true, kind: "number", width: "94px", cell: (job) => html`<${Taken} job=${job} />` },
];

const submittedOf = (job) => job.submitted_s ?? job.received_s;

const JobLink = ({ job }) => html`
  <a href=${href("jobs", job.job)} title=${job.key ? `${job.job}: ${inputOf(job)}` : job.job}>${fileName(inputOf(job)) || shortId(job.job)}</a>`;

const Reason = ({ job }) => hasReason(job.reason) && html`<span title=${meaningOf(job.reason)}>${words(job.reason)}</span>`;

// On a phone the one column that identifies a job has its reason and function, too.
const Input = ({ job }) => html`
  <span class="two-lines"><${JobLink} job=${job} /> <span class="desk muted mono">${job.key && shortId(job.job, 8)}</span>
    <small class="phone cut">${hasReason(job.reason) && html`<b>${words(job.reason)}</b> · `}${job.function ?? "–"}</small></span>
`;

function Age({ time_s }) {
  const now_s = useNow();
  return html`<span class="number" title=${moment(time_s)}><span class="desk">${ago(time_s, now_s)}</span><span class="phone">${about(Math.max(0, now_s - time_s))}</span></span>`;
}

function Taken({ job }) {
  const now_s = useNow();
  return duration(Math.max(0, (isEnded(job.state) ? job.changed_s : now_s) - submittedOf(job)));
}

const SINCE = [["", "Any time"], ["900", "15 min"], ["3600", "1 h"], ["86400", "1 day"]];
const TYPING_MS = 250; // between the last key and the search

export function JobsView() {
  const { values } = useStore(route);
  const [text, setText] = useState(values.q ?? "");
  useEffect(() => {
    if (text === (values.q ?? "")) return undefined;
    const timer = setTimeout(() => setValues({ q: text }), TYPING_MS);
    return () => clearTimeout(timer);
  }, [text]);
  const { state = "", q = "", since = "", sort = "", order = "" } = values;
  // the server takes a moment; it stays the same until another time is chosen
  const since_s = useMemo(() => since && Math.floor(Date.now() / 1000) - Number(since), [since]);
  const filter = { state, q, since: since_s, function: values.function, sort, order };
  const letters = state === "LETTERS";
  return html`
    <${Page} title="Jobs" controls=${html`
      <${StateChoice} value=${state} />
      ${!letters && html`<${Select} label="Received" value=${since} options=${SINCE} onChoose=${(one) => setValues({ since: one })} />`}
      <${FunctionChoice} value=${values.function ?? ""} />
      <${Search} label="Id, key, function" value=${text} onInput=${setText} />
    `}>
      ${letters ? html`<${Letters} of=${values.function} q=${q} />` : html`<${JobTable} filter=${filter} />`}
    <//>
  `;
}

function JobTable({ filter }) {
  const { sort: by, order } = filter;
  const pages = usePages("/jobs", filter, { kinds: ["job"] });
  const chosen = useChosen(pages);
  const narrow = useNarrow();
  // first ascending, then descending, then again in the order of receipt
  const onSort = (column) => setValues(
    column !== by ? { sort: column, order: "" } : order ? { sort: "", order: "" } : { order: "descending" });
  const empty = html`<${Empty} title="No job fits this filter.">Upload a file to a function's input, or drop one on its page under Functions.<//>`;
  return html`
    ${pages.error && html`<${ErrorLine} error=${pages.error} />`}
    ${chosen.jobs.length > 0 && html`<${Together} chosen=${chosen} onDone=${pages.reload} />`}
    <${Listed} ...${pages} empty=${empty}>
    <${EndlessTable} label="Jobs" columns=${chosen.column ? [chosen.column, ...COLUMNS] : COLUMNS} rows=${pages.items} total=${pages.total}
      sorted=${{ by, descending: Boolean(order) }} onSort=${onSort} rowHeight=${narrow ? 52 : 38}
      keyOf=${(job) => job.job} onEnd=${pages.more} onOpen=${(job) => go(href("jobs", job.job))} />
    <p class="foot fine row"><span>${pages.total === null ? `${count(pages.items.length)} jobs loaded${pages.next ? ", more below" : ""}` : `${count(pages.items.length)} of ${count(pages.total)} jobs loaded`}</span>
      <span>Export${" "}${["csv", "json"].map((form) => html`<a key=${form} href=${urlOf(withQuery(`/export/jobs.${form}`, { ...filter, sort: "", order: "" }))} download="jobs.${form}">${form.toUpperCase()}</a>${" "}`)}</span></p>
    <//>
  `;
}

/** Jobs that are chosen for one action on all: {jobs, column, clear}; without the rights there is no column. */
function useChosen({ items }) {
  const current = useStore(session);
  const [ids, setIds] = useState(new Set());
  const set = (jobs, on) => setIds((before) => {
    const after = new Set(before);
    for (const { job } of jobs) after[on ? "add" : "delete"](job);
    return after;
  });
  const box = (label, jobs) => html`
    <label><input type="checkbox" aria-label=${label} checked=${jobs.every(({ job }) => ids.has(job))}
      onChange=${(event) => set(jobs, event.target.checked)} /></label>`;
  return {
    jobs: items.filter(({ job }) => ids.has(job)),
    clear: () => setIds(new Set()),
    column: current.role !== "reader" && {
      key: "pick", label: box("All loaded jobs", items), width: "40px", narrow: "40px",
      cell: (job) => box(`Job ${fileName(inputOf(job)) || job.job}`, [job]),
    },
  };
}

const AT_ONCE = 2; // the server lets each key do as many

/** Cancel or retry of all chosen jobs; the server decides about each one, as in its own view. */
function Together({ chosen, onDone }) {
  const [left, setLeft] = useState(0);
  const live = chosen.jobs.filter((job) => !isEnded(job.state));
  const failed = chosen.jobs.filter((job) => ["FAILED", "REJECTED"].includes(job.state));
  const run = async (jobs, action, done) => {
    const queue = [...jobs];
    const errors = [];
    const worker = async () => {
      for (let job = queue.shift(); job; job = queue.shift()) {
        await post(`/jobs/${encodeURIComponent(job.job)}/${action}`).catch((error) => errors.push(error));
        setLeft((before) => before - 1);
      }
    };
    setLeft(jobs.length);
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    const good = jobs.length - errors.length;
    if (good) notify(`${plural(good, "job")} ${done}.`, { kind: "good" });
    if (errors.length) notify(`${plural(errors.length, "job")} not: ${errors[0].message}`, { kind: "error", hint: errors[0].hint });
    chosen.clear();
    onDone();
  };
  const cancel = () => confirm({
    title: `Cancel ${plural(live.length, "job")}?`, text: "Their leases are revoked, and what they computed so far is lost.",
    action: "Cancel them", danger: true, act: () => run(live, "cancel", "cancelled"),
  });
  return html`
    <div class="together row" role="group" aria-label="Chosen jobs">
      <span role="status">${left > 0 ? `${count(left)} left` : `${count(chosen.jobs.length)} chosen`}</span>
      ${left === 0 && live.length > 0 && html`<button type="button" class="small" onClick=${cancel}>Cancel ${count(live.length)}</button>`}
      ${left === 0 && failed.length > 0 && html`<button type="button" class="small" onClick=${() => run(failed, "retry", "begin a new run")}>Retry ${count(failed.length)}</button>`}
      ${left === 0 && html`<button type="button" class="quiet small" onClick=${chosen.clear}>Choose none</button>`}
    </div>
  `;
}

const GROUPS = [["", "All"], ["live", "Live"], ["WAITING", "Waiting"], ["RUNNING", "Running"], ["SUCCEEDED", "Succeeded"], ["FAILED", "Failed"]];

function StateChoice({ value }) {
  const { data } = useResource("/overview", { kinds: ["job"] });
  const choose = (state) => setValues({ state });
  const groups = GROUPS.map(([state, label]) => [state, label, state && data?.jobs_by_state?.[state] ? count(data.jobs_by_state[state]) : undefined]);
  const others = [["", "Other states"], ["LETTERS", "Dead letters"],
    ...STATES.filter((state) => !GROUPS.some(([one]) => one === state)).map((state) => [state, words(state)])];
  return html`
    <${Choice} label="State" value=${value} options=${groups} onChoose=${choose} />
    <${Select} label="Other states" value=${others.some(([one]) => one === value) ? value : ""} options=${others} onChoose=${choose} />
  `;
}

function FunctionChoice({ value }) {
  const names = useStore(deployed).map((one) => [one.name, one.name]);
  return html`<${Select} label="Function" value=${value} options=${[["", "All functions"], ...names]} onChoose=${(name) => setValues({ function: name })} />`;
}

const Select = ({ label, value, options, onChoose }) => html`
  <select aria-label=${label} value=${value} onChange=${(event) => onChoose(event.target.value)}>
    ${options.map(([one, text]) => html`<option key=${one} value=${one} selected=${one === value}>${text}</option>`)}
  </select>
`;

