// Dead letters: events of failed jobs and invalid messages, each with a retry.
import { post, withQuery } from "../core/api.js";
import { fileName, moment, shortId, words } from "../core/format.js";
import { html } from "../core/html.js";
import { attempt } from "../core/notices.js";
import { meaningOf } from "../core/reasons.js";
import { useResource } from "../core/resource.js";
import { Empty, ErrorLine, JobLink, Listed, contains } from "../parts/page.js";
import { Table } from "../parts/table.js";

const READ_EVERY_S = 20; // each read hides the letters from other readers for a moment

/** Letters of one function, or of all; `q` is a part of their job, input or function. */
export function Letters({ of, q }) {
  const { data, error, reload } = useResource(withQuery("/letters", { function: of }), { every_s: READ_EVERY_S });
  const items = data?.items.filter((one) => contains(q, one.job, one.input, one.function) || !q);
  const retry = async ({ letter, function: name }) => {
    const act = () => post(`/letters/${encodeURIComponent(letter)}/retry`, { function: name });
    if (await attempt(act, "The letter is in its queue again.")) reload();
  };
  const columns = [
    { label: "Job", cell: ({ job, input }) => (job ? html`<${JobLink} job=${job} name=${fileName(input)} />` : "–") },
    { label: "Function", wide: true, cell: (one) => one.function },
    { label: "Input", wide: true, cell: (one) => one.input ?? "–" },
    { label: "Reason", cell: (one) => html`<span title=${one.detail || meaningOf(one.reason)}>${words(one.reason) || "–"}</span>` },
    { label: "Since", wide: true, kind: "number", cell: (one) => moment(one.sent_s) },
    { key: "action", label: html`<span class="visually-hidden">Action</span>`, kind: "end",
      cell: (one) => one.may_retry && html`<button type="button" class="small" onClick=${() => retry(one)}>Retry</button>` },
  ];
  const empty = data?.items.length ? html`<${Empty} title="No dead letter fits this filter." />`
    : html`<${Empty} title="No dead letter.">The event of a job that failed for good is kept here, with its reason.<//>`;
  return html`
    ${error && html`<${ErrorLine} error=${error} />`}
    <${Listed} items=${items} error=${error} empty=${empty}>
      <${Table} label="Dead letters" columns=${columns} rows=${items} keyOf=${(one) => one.letter} />
    <//>`;
}
