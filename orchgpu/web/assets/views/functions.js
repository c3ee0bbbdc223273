// The deployed functions.
import { ago, count } from "../core/format.js";
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

function FunctionCard({ name, revision, changed_s, gpu, inputs, outputs, jobs, group }) {
  const now_s = useNow(30000);
  return html`
    <li class="panel card">
      <h2><a href=${href("functions", name)}>${name}</a></h2>
      <p class="tags">
        <span class="tag ${gpu ? "accent" : ""}">${gpu ? (typeof gpu === "string" ? gpu : "GPU") : "no device"}</span>
        ${group && html`<span class="tag">group ${group}</span>`}
        ${revision != null && html`<span class="tag">revision ${revision}</span>`}
      </p>
      <p class="flow"><span>${listed(inputs)}</span><span aria-label="to">→</span><span>${listed(outputs)}</span></p>
      <p class="muted">${jobs && html`<a href=${href("jobs", null, { function: name })}>${jobSummary(jobs)}</a>`}
        ${changed_s && html`<span>deployed ${ago(changed_s, now_s)}</span>`}</p>
    </li>
  `;
}

const listed = (value) => (Array.isArray(value) ? value.join(", ") : value) || "–";

const jobSummary = (jobs) =>
  typeof jobs === "number"
    ? `${count(jobs)} jobs`
    : Object.entries(jobs).filter(([, number]) => number).map(([state, number]) => `${count(number)} ${state.toLowerCase()}`).join(", ") || "no job yet";
