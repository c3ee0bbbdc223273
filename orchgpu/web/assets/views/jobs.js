// Jobs, newest first: live states, filters, search by id, key or function.
import { ago, count, fileName, shortId, words } from "../core/format.js";
import { hasReason, meaningOf } from "../core/reasons.js";
import { html, useEffect, useMemo, useState } from "../core/html.js";
import { useNow, usePages, useResource } from "../core/resource.js";
import { go, href, route, setValues } from "../core/router.js";
import { useStore } from "../core/store.js";
import { Choice, Empty, Page, Search, Waiting } from "../parts/page.js";
import { STATES, State } from "../parts/state.js";
import { VirtualTable } from "../parts/virtual.js";
import { Letters } from "./letters.js";

const COLUMNS = [
  { label: "State", width: "128px", cell: (job) => html`<${State} state=${job.state} />` },
  { label: "Job", width: "124px", narrow: "auto", cell: (job) => html`<a class="mono" href=${href("jobs", job.job)} title=${job.job}><span class="desk">${shortId(job.job)}</span><span class="phone">${fileName(job.key) || shortId(job.job)}</span></a>` },
  { label: "Input", wide: true, cell: (job) => html`<span title="${job.bucket}/${job.key}">${fileName(job.key) || "–"} <span class="muted">${job.bucket}</span></span>` },
  { label: "Function", wide: true, width: "15%", cell: (job) => job.function ?? "–" },
  { label: "Reason", wide: true, width: "132px", cell: (job) => hasReason(job.reason) && html`<span title=${meaningOf(job.reason)}>${words(job.reason)}</span>` },
  { label: "Device", wide: true, width: "104px", cell: (job) => html`<span title=${job.device}>${(job.device ?? "").split(" ")[0]}</span>` },
  { label: "Attempt", wide: true, end: true, width: "78px", cell: (job) => html`<span class="number">${job.attempt || "–"}</span>` },
  { label: "Changed", end: true, width: "110px", cell: (job) => html`<${Age} time_s=${job.changed_s ?? job.received_s} />` },
];

function Age({ time_s }) {
  return html`<span class="number">${ago(time_s, useNow())}</span>`;
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
  const { state = "", q = "", since = "" } = values;
  // the server takes a moment; it stays the same until another time is chosen
  const since_s = useMemo(() => since && Math.floor(Date.now() / 1000) - Number(since), [since]);
  const filter = { state, q, since: since_s, function: values.function };
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
  const pages = usePages("/jobs", filter, { kinds: ["job"] });
  if (pages.error && !pages.items.length) return html`<${Empty} title=${pages.error.message}>${pages.error.hint}<//>`;
  if (pages.loading && !pages.items.length) return html`<${Waiting} rows=${10} />`;
  if (!pages.items.length) {
    return html`<${Empty} title="No job fits this filter.">Upload a file to a function's input, or drop one on its page under Functions.<//>`;
  }
  return html`
    <${VirtualTable} label="Jobs" columns=${COLUMNS} rows=${pages.items} total=${pages.total}
      keyOf=${(job) => job.job} onEnd=${pages.more} onOpen=${(job) => go(href("jobs", job.job))} />
    <p class="foot">${pages.total === null ? `${count(pages.items.length)} jobs loaded${pages.next ? ", more below" : ""}` : `${count(pages.items.length)} of ${count(pages.total)} jobs loaded`}</p>
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
  const { data } = useResource("/functions");
  const names = (data?.items ?? []).map((one) => [one.name, one.name]);
  return html`<${Select} label="Function" value=${value} options=${[["", "All functions"], ...names]} onChoose=${(name) => setValues({ function: name })} />`;
}

const Select = ({ label, value, options, onChoose }) => html`
  <select aria-label=${label} value=${value} onChange=${(event) => onChoose(event.target.value)}>
    ${options.map(([one, text]) => html`<option key=${one} value=${one} selected=${one === value}>${text}</option>`)}
  </select>
`;

