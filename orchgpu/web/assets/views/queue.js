// The queue in the order of service: place, what each request waits for, and since when.
import { count, duration, fileName, shortId } from "../core/format.js";
import { html } from "../core/html.js";
import { waitsFor } from "../core/reasons.js";
import { useNow, usePages } from "../core/resource.js";
import { go, href } from "../core/router.js";
import { Cut, Empty, JobLink, Listed, Page } from "../parts/page.js";
import { EndlessTable } from "../parts/table.js";

const COLUMNS = [
  { label: "Place", width: "60px", narrow: "54px", cell: (row) => html`<span class="number">${row.position ?? "–"}</span>` },
  { label: "Job", width: "22%", narrow: "116px", cell: (row) => html`<${Job} row=${row} />` },
  { label: "Waits for", cell: (row) => html`<span title=${row.sentence || null}>${waitsFor(row.reason)}<span class="phone muted">${row.expected_s == null ? "" : `, ${duration(row.expected_s)}`}</span></span>` },
  { label: "Function, tenant", wide: true, width: "17%", cell: (row) => html`${row.function ?? "–"} <span class="muted">${row.tenant}</span>` },
  { label: "Wants", wide: true, cell: (row) => html`<${Cut} text=${row.wants} />` },
  { label: "Priority", wide: true, kind: "number", width: "74px", cell: (row) => row.priority },
  { label: "Waiting", wide: true, kind: "number", width: "84px", cell: (row) => html`<${Since} ...${row} />` },
  { label: "Device within", wide: true, kind: "number", width: "112px", cell: ({ expected_s, reason }) => expected_s == null
    ? html`<${Cut} text="unknown" title="Leases of no stated length are before it, or the request is far behind." />`
    : html`<${Cut} text=${duration(expected_s)} title=${reason === "HOST_STARTS" ? "A host of a pool is expected then." : "By then the leases that block it have ended."} />` },
];

function Job({ row: { job, attempt, key: input } }) {
  if (!job) return html`<${Cut} kind="mono" text=${shortId(attempt)} title=${attempt} />`;
  return html`<${JobLink} job=${job} name=${fileName(input)} /><span class="muted desk"> ${fileName(input)}</span>`;
}

// The server's figure is a duration at the moment of its answer; the clock runs on between answers.
function Since({ waiting_s, read_s }) {
  return duration(waiting_s + Math.max(0, useNow() - read_s));
}

export function QueueView() {
  const pages = usePages("/queue", {}, { kinds: ["queue", "lease"] });
  const read_s = Date.now() / 1000;
  const rows = pages.items.map((row) => ({ ...row, read_s }));
  const empty = html`<${Empty} title="Nothing waits.">A request appears here when the devices that fit it are lent, or when a rule holds it back.<//>`;
  return html`
    <${Page} title="Queue" error=${pages.error}
      aside=${!pages.loading && !pages.error && `${count(pages.total ?? rows.length)} waiting, in the order of service`}>
      <${Listed} ...${pages} empty=${empty}>
        <${EndlessTable} label="Queue" columns=${COLUMNS} rows=${rows} total=${pages.total} keyOf=${(row) => row.attempt}
          onEnd=${pages.more} onOpen=${({ job }) => job && go(href("jobs", job))} />
      <//>
    <//>
  `;
}
