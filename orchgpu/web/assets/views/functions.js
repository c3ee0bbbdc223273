// The deployed functions.
import { ago, count, plural } from "../core/format.js";
import { html, useState } from "../core/html.js";
import { useNow, useResource } from "../core/resource.js";
import { href } from "../core/router.js";
import { Empty, Page, Search, Waiting } from "../parts/page.js";

export function FunctionsView() {
  const { data, error } = useResource("/functions", { kinds: ["job"], every_s: 20 });
  const [text, setText] = useState("");
  const all = data?.items ?? [];
  const shown = all.filter((one) => one.name.toLowerCase().includes(text.toLowerCase()));
  return html`
    <${Page} title="Functions" error=${error} aside=${data && html`<p class="sub">${count(all.length)} deployed</p>`}
      controls=${html`<${Search} label="Name" value=${text} onInput=${setText} />`}>
      ${!data && !error && html`<${Waiting} />`}
      ${data && !all.length && html`<${Empty} title="No function is deployed."><code>orchgpu deploy FILE</code> deploys one; <code>orchgpu init</code> writes an example.<//>`}
      ${data && all.length > 0 && !shown.length && html`<${Empty} title="No function has this name." />`}
      <ul class="cards">${shown.map((one) => html`<${FunctionCard} key=${one.name} ...${one} />`)}</ul>
    <//>
  `;
}

function FunctionCard({ name, revision, changed_s, gpu, tenant, inputs, outputs, jobs, jobs_kept: kept }) {
  const now_s = useNow(30000);
  return html`
    <li class="panel card">
      <h2><a href=${href("functions", name)}>${name}</a></h2>
      <p class="tags">
        <span class="tag accent">${gpu}</span>
        ${tenant && html`<span class="tag">${tenant}</span>`}
        ${revision ? html`<span class="tag">revision ${revision}</span>` : null}
      </p>
      <p class="flow"><span>${inputs.join(", ")}</span><span aria-hidden="true">→</span><span>${outputs.join(", ") || "–"}</span></p>
      <p class="muted">${kept ? html`<a href=${href("jobs", null, { function: name })}>${plural(jobs, "job")}</a>` : "started by its event, without jobs"}
        ${changed_s && html`<span>deployed ${ago(changed_s, now_s)}</span>`}</p>
    </li>
  `;
}
