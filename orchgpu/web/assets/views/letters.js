// Dead letters: events of failed jobs and invalid messages, each with a retry.
import { mayRequest, post, session } from "../core/api.js";
import { moment, shortId, words } from "../core/format.js";
import { html } from "../core/html.js";
import { attempt } from "../core/notices.js";
import { useResource } from "../core/resource.js";
import { href } from "../core/router.js";
import { useStore } from "../core/store.js";
import { Empty, ErrorLine, Waiting } from "../parts/page.js";

export function Letters() {
  const current = useStore(session);
  const letters = useResource("/letters", { kinds: ["job"], every_s: 15 });
  if (letters.error) return html`<${ErrorLine} error=${letters.error} />`;
  if (!letters.data) return html`<${Waiting} />`;
  const items = letters.data.items;
  if (!items.length) return html`<${Empty} title="No dead letter.">The event of a job that failed for good is kept here, with its reason.<//>`;
  const retry = async (id) => {
    if (await attempt(() => post(`/letters/${encodeURIComponent(id)}/retry`), "The letter is in its queue again.")) letters.reload();
  };
  return html`
    <div class="table-wrap" tabIndex="0" role="region" aria-label="Dead letters">
      <table class="table plain">
        <thead><tr><th scope="col">Letter</th><th scope="col">Job</th><th scope="col">Function</th><th scope="col">Reason</th><th scope="col">Sent</th><th scope="col"><span class="visually-hidden">Action</span></th></tr></thead>
        <tbody>
          ${items.map((one) => html`
            <tr key=${one.letter}>
              <td class="mono">${shortId(String(one.letter))}</td>
              <td>${one.job && html`<a class="mono" href=${href("jobs", one.job)}>${shortId(one.job)}</a>`}</td>
              <td>${one.function ?? "–"}</td><td>${words(one.reason)}</td><td class="number">${moment(one.sent_s)}</td>
              <td class="end">${mayRequest(current) && html`<button type="button" class="small" onClick=${() => retry(one.letter)}>Retry</button>`}</td>
            </tr>`)}
        </tbody>
      </table>
    </div>
  `;
}
