// The queue in the order of service: place, what each request waits for, and since when.
import { count, duration, fileName, shortId, words } from "../core/format.js";
import { html } from "../core/html.js";
import { useNow, usePages } from "../core/resource.js";
import { href } from "../core/router.js";
import { Empty, Page, Waiting } from "../parts/page.js";
import { VirtualTable } from "../parts/virtual.js";

const COLUMNS = [
  { label: "Place", width: "64px", narrow: "54px", cell: (row) => html`<span class="number">${row.position ?? "–"}</span>` },
  { label: "Job", cell: (row) => html`<${JobLink} ...${row} />` },
  { label: "Waits for", cell: (row) => html`<span class="why" title=${row.sentence || null}>${words(row.reason)}</span>` },
  { label: "Function", wide: true, cell: (row) => row.function ?? "–" },
  { label: "Tenant", wide: true, width: "120px", cell: (row) => row.tenant ?? "–" },
  { label: "Wants", wide: true, cell: (row) => html`<span title=${row.wants}>${row.wants}</span>` },
  { label: "Priority", wide: true, end: true, width: "80px", cell: (row) => html`<span class="number">${row.priority}</span>` },
  { label: "Waiting", end: true, width: "96px", cell: (row) => html`<${Since} ...${row} />` },
  { label: "Expected in", wide: true, end: true, width: "110px", cell: (row) => html`<span class="number">${row.expected_s == null ? "unknown" : duration(row.expected_s)}</span>` },
];

const JobLink = ({ job, attempt, key }) =>
  job
    ? html`<a class="mono" href=${href("jobs", job)} title=${job}>${shortId(job)}</a>${key && html` <span class="muted">${fileName(key)}</span>`}`
    : html`<span class="mono" title=${attempt}>${shortId(attempt)}</span>`;

// The server's figure is a duration at the moment of its answer; the clock runs on between answers.
function Since({ waiting_s, read_s }) {
  const now_s = useNow();
  return html`<span class="number">${duration(waiting_s + Math.max(0, now_s - (read_s ?? now_s)))}</span>`;
}

export function QueueView() {
  const pages = usePages("/queue", {}, { kinds: ["queue", "lease"] });
  const read_s = Date.now() / 1000;
  const rows = pages.items.map((row) => ({ ...row, read_s }));
  return html`
    <${Page} title="Queue" error=${pages.error}
      aside=${!pages.loading && html`<p class="sub">${count(pages.total ?? rows.length)} waiting, in the order of service</p>`}>
      ${pages.loading && !rows.length ? html`<${Waiting} />` : rows.length === 0
        ? html`<${Empty} title="Nothing waits.">A request appears here when the devices that fit it are lent, or when a rule holds it back.<//>`
        : html`<${VirtualTable} label="Queue" columns=${COLUMNS} rows=${rows} total=${pages.total}
            keyOf=${(row) => row.attempt} onEnd=${pages.more}
            onOpen=${(row) => row.job && (location.hash = href("jobs", row.job))} />`}
    <//>
  `;
}
