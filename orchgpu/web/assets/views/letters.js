// Dead letters: events of failed jobs and invalid messages, each with a retry.
import { post, withQuery } from "../core/api.js";
import { fileName, moment, shortId, words } from "../core/format.js";
import { html } from "../core/html.js";
import { attempt } from "../core/notices.js";
import { meaningOf } from "../core/reasons.js";
import { useResource } from "../core/resource.js";
import { href } from "../core/router.js";
import { Empty, ErrorLine, Waiting } from "../parts/page.js";

const READ_EVERY_S = 20; // each read hides the letters from other readers for a moment

/** Letters of one function, or of all; `q` is a part of their job, input or function. */
export function Letters({ of, q }) {
  const letters = useResource(withQuery("/letters", { function: of }), { every_s: READ_EVERY_S });
  if (letters.error) return html`<${ErrorLine} error=${letters.error} />`;
  if (!letters.data) return html`<${Waiting} />`;
  const fits = (one) => [one.job, one.input, one.function].some((text) => text?.toLowerCase().includes(q.toLowerCase()));
  const items = letters.data.items.filter((one) => !q || fits(one));
  if (letters.data.items.length && !items.length) return html`<${Empty} title="No dead letter fits this filter." />`;
  if (!items.length) return html`<${Empty} title="No dead letter.">The event of a job that failed for good is kept here, with its reason.<//>`;
  const retry = async (one) => {
    const path = `/letters/${encodeURIComponent(one.letter)}/retry`;
    if (await attempt(() => post(path, { function: one.function }), "The letter is in its queue again.")) letters.reload();
  };
  return html`
    <div class="table-wrap" tabIndex="0" role="region" aria-label="Dead letters">
      <table class="table plain">
        <thead><tr><th scope="col">Job</th><th scope="col" class="desk">Function</th><th scope="col" class="desk">Input</th><th scope="col">Reason</th><th scope="col" class="desk">Since</th><th scope="col"><span class="visually-hidden">Action</span></th></tr></thead>
        <tbody>
          ${items.map((one) => html`
            <tr key=${one.letter}>
              <td>${one.job ? html`<a class="mono" href=${href("jobs", one.job)} title=${one.job}><span class="desk">${shortId(one.job)}</span><span class="phone">${fileName(one.input) || shortId(one.job)}</span></a>` : "–"}</td>
              <td class="desk">${one.function}</td><td class="desk">${one.input ?? "–"}</td><td title=${one.detail || meaningOf(one.reason)}>${words(one.reason) || "–"}</td><td class="desk number">${moment(one.sent_s)}</td>
              <td class="end">${one.may_retry && html`<button type="button" class="small" onClick=${() => retry(one)}>Retry</button>`}</td>
            </tr>`)}
        </tbody>
      </table>
    </div>
  `;
}
