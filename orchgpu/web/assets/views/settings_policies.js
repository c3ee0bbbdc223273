// The queue policy: which one is in force, what each promises, and the parameters of the current one.
import { html, useState } from "../core/html.js";
import { Confirm } from "../parts/dialog.js";
import { Setting, change } from "./settings_row.js";

export function Policies({ data, writes, onDone }) {
  const current = data.policies.find((one) => one.name === "policy").value;
  const [asked, setAsked] = useState(null);
  const ask = (name) => setAsked({
    title: `Serve the queue by ${name}?`, text: "It is in force at once; no lease is lost.", action: "Change the policy",
    act: async () => (await change("policy", name)) && onDone(),
  });
  return html`
    <section class="panel" aria-label="Policy">
      <header class="panel-head"><h2>Policy</h2><span class="tag accent">${current}</span></header>
      ${data.installed.length > 0 && html`
        <div class="table-wrap" tabIndex="0" role="region" aria-label="Installed policies">
          <table class="table plain">
            <thead><tr><th scope="col">Policy</th><th scope="col">Next is</th><th scope="col">Bound on waiting</th><th scope="col">May starve</th>
              ${writes && html`<th scope="col"><span class="visually-hidden">Action</span></th>`}</tr></thead>
            <tbody>${data.installed.map((one) => html`
              <tr key=${one.name}>
                <th scope="row" class="mono">${one.name}</th><td class="wrap">${one.summary}</td><td class="wrap">${one.wait_bound || "none"}</td><td class="wrap">${one.starves || "–"}</td>
                ${writes && html`<td class="end">${one.name === current ? "in force" : html`<button type="button" class="small" onClick=${() => ask(one.name)}>Use<span class="visually-hidden"> ${one.name}</span></button>`}</td>`}
              </tr>`)}
            </tbody>
          </table>
        </div>`}
      <ul class="rows">${data.policies.filter((one) => one.name !== "policy").map((item) => html`
        <${Setting} key=${item.name} item=${item} writes=${writes} onDone=${onDone} />`)}</ul>
      <${Confirm} asked=${asked} onClose=${() => setAsked(null)} />
    </section>
  `;
}
