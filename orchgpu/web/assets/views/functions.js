// The deployed functions.
import { ago, count, plural } from "../core/format.js";
import { html, useState } from "../core/html.js";
import { useNow, useResource } from "../core/resource.js";
import { href } from "../core/router.js";
import { Empty, Listed, Page, Search, contains } from "../parts/page.js";

export function FunctionsView() {
  const { data, error } = useResource("/functions", { kinds: ["job"], every_s: 20 });
  const [text, setText] = useState("");
  const items = data?.items.filter((one) => contains(text, one.name));
  const empty = data?.items.length ? html`<${Empty} title="No function has this name." />`
    : html`<${Empty} title="No function is deployed."><code>orchgpu deploy FILE</code> deploys one; <code>orchgpu init</code> writes an example.<//>`;
  return html`
    <${Page} title="Functions" error=${error} aside=${data && `${count(data.items.length)} deployed`}
      controls=${html`<${Search} label="Name" value=${text} onInput=${setText} />`}>
      <${Listed} items=${items} error=${error} empty=${empty}>
        <ul class="tiles">${items?.map((one) => html`<${FunctionCard} key=${one.name} ...${one} />`)}</ul>
      <//>
    <//>
  `;
}

function FunctionCard({ name, revision, changed_s, gpu, tenant, inputs, outputs, jobs, jobs_kept: kept }) {
  const now_s = useNow(30000);
  return html`
    <li class="panel stack inset text" style=${{ "--gap": "8px" }}>
      <h2><a href=${href("functions", name)}>${name}</a></h2>
      <p class="row">
        <span class="chip accent">${gpu}</span>
        ${tenant && html`<span class="chip">${tenant}</span>`}
        ${revision ? html`<span class="chip">revision ${revision}</span>` : null}
      </p>
      <p class="muted break">${inputs.join(", ")} <span aria-hidden="true">→</span> ${outputs.join(", ") || "–"}</p>
      <p class="fine row">${kept ? html`<a href=${href("jobs", null, { function: name })}>${plural(jobs, "job")}</a>` : "started by its event, without jobs"}
        ${changed_s && html`<span>deployed ${ago(changed_s, now_s)}</span>`}</p>
    </li>
  `;
}
