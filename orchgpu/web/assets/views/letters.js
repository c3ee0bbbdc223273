// Dead letters: events of failed jobs and invalid messages, each with a retry.
import { post } from "../core/api.js";
import { moment, shortId, words } from "../core/format.js";
import { html } from "../core/html.js";
import { attempt } from "../core/notices.js";
import { useResource } from "../core/resource.js";
import { href } from "../core/router.js";
import { Empty, ErrorLine, Waiting } from "../parts/page.js";

export function Letters() {
  const letters = useResource("/letters", { kinds: ["job"], every_s: 15 });
  if (letters.error) return html`<${ErrorLine} error=${letters.error} />`;
  if (!letters.data) return html`<${Waiting} />`;
  const items = letters.data.items;
  if (!items.length) return html`<${Empty} title="No dead letter.">The event of a job that failed for good is kept here, with its reason.<//>`;
  const retry = async (one) => {
    const path = `/letters/${encodeURIComponent(one.letter)}/retry`;
    if (await attempt(() => post(path, { function: one.function }), "The letter is in its queue again.")) letters.reload();
  };
  return html`
    <div class="table-wrap" tabIndex="0" role="region" aria-label="Dead letters">
      <table class="table plain">
        <thead><tr><th scope="col">Job</th><th scope="col">Function</th><th scope="col">Input</th><th scope="col">Reason</th><th scope="col">Since</th><th scope="col"><span class="visually-hidden">Action</span></th></tr></thead>
        <tbody>
          ${items.map((one) => html`
            <tr key=${one.letter}>
              <td>${one.job ? html`<a class="mono" href=${href("jobs", one.job)}>${shortId(one.job)}</a>` : "–"}</td>
              <td>${one.function}</td><td>${one.input ?? "–"}</td><td title=${one.detail}>${words(one.reason) || "–"}</td><td class="number">${moment(one.sent_s)}</td>
              <td class="end">${one.may_retry && html`<button type="button" class="small" onClick=${() => retry(one)}>Retry</button>`}</td>
            </tr>`)}
        </tbody>
      </table>
    </div>
  `;
}
