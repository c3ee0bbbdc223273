// The queue in the order of service: place, what each request waits for, and since when.
import { count, duration, fileName, shortId } from "../core/format.js";
import { html } from "../core/html.js";
import { waitsFor } from "../core/reasons.js";
import { useNow, usePages } from "../core/resource.js";
import { href } from "../core/router.js";
import { Empty, Page, Waiting } from "../parts/page.js";
import { VirtualTable } from "../parts/virtual.js";

const COLUMNS = [
  { label: "Place", width: "60px", narrow: "54px", cell: (row) => html`<span class="number">${row.position ?? "–"}</span>` },
  { label: "Job", width: "22%", narrow: "116px", cell: (row) => html`<${JobLink} row=${row} />` },
  { label: "Waits for", cell: (row) => html`<span class="why" title=${row.sentence || null}>${waitsFor(row.reason)}<span class="phone muted">${row.expected_s == null ? "" : `, ${duration(row.expected_s)}`}</span></span>` },
  { label: "Function, tenant", wide: true, width: "17%", cell: (row) => html`${row.function ?? "–"} <span class="muted">${row.tenant}</span>` },
  { label: "Wants", wide: true, cell: (row) => html`<span title=${row.wants}>${row.wants}</span>` },
  { label: "Priority", wide: true, end: true, width: "74px", cell: (row) => html`<span class="number">${row.priority}</span>` },
  { label: "Waiting", wide: true, end: true, width: "84px", cell: (row) => html`<${Since} ...${row} />` },
  { label: "Device within", wide: true, end: true, width: "112px", cell: (row) => html`<span class="number" title=${row.expected_s == null ? "Leases of no stated length are before it, or the request is far behind." : "By then the leases that block it have ended."}>${row.expected_s == null ? "unknown" : duration(row.expected_s)}</span>` },
];

function JobLink({ row: { job, attempt, key } }) {
  if (!job) return html`<span class="mono" title=${attempt}>${shortId(attempt)}</span>`;
  const name = fileName(key);
  return html`
    <a class="mono" href=${href("jobs", job)} title=${job}>
      <span class="desk">${shortId(job)}</span><span class="phone">${name || shortId(job)}</span></a>
    ${name && html`<span class="muted desk"> ${name}</span>`}`;
}

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
