// Settings: policy, parameters and quotas of the scheduler; drain. Only an operator changes them.
import { html, useState } from "../core/html.js";
import { useResource } from "../core/resource.js";
import { Page, Search, Waiting } from "../parts/page.js";
import { Drain } from "./settings_drain.js";
import { Policies } from "./settings_policies.js";
import { Setting, change } from "./settings_row.js";

export function SettingsView() {
  const { data, error, reload } = useResource("/settings", { kinds: ["parameters", "policy", "host", "device"] });
  const [text, setText] = useState("");
  const writes = data?.may_change ?? false;
  const fits = ({ name }) => name.toLowerCase().includes(text.toLowerCase());
  const groups = data ? groupsOf(data) : [];
  return html`
    <${Page} title="Settings" error=${error}
      aside=${data && !writes && html`<p class="sub">Read only: an operator's key changes them.</p>`}
      controls=${html`<${Search} label="Parameter" value=${text} onInput=${setText} />`}>
      ${!data && !error && html`<${Waiting} />`}
      ${data && html`
        <div class="settings">
          <${Policies} data=${data} writes=${writes} onDone=${reload} />
          ${writes && html`<${Drain} drained=${data.drained} onDone=${reload} />`}
          ${groups.map(([title, items, added]) => html`
            <section class="panel" key=${title} aria-label=${title}>
              <header class="panel-head"><h2>${title}</h2><span class="muted">${items.length || ""}</span></header>
              ${!items.length && html`<p class="muted pad">No tenant has a quota or a weight of its own: none is limited, and each has the weight 1.</p>`}
              <ul class="rows">${items.filter(fits).map((item) => html`
                <${Setting} key=${item.name} item=${item} writes=${writes} onDone=${reload} />`)}</ul>
              ${writes && added && html`<${Added} hint=${added} onDone=${reload} />`}
            </section>`)}
        </div>`}
    <//>
  `;
}

/** [[title, items, the form of a new name]] */
const groupsOf = (data) => [
  ["Quotas and weights", data.quotas, "quota.TENANT.devices"],
  ["Parameters", data.parameters, null],
];

const LIMITS = ["quota.TENANT.devices", "quota.TENANT.memory_mib", "quota.TENANT.compute_pct", "weight.TENANT"];

function Added({ hint, onDone }) {
  const add = async (event) => {
    event.preventDefault();
    const form = event.target;
    const { name, value } = Object.fromEntries(new FormData(form));
    if (await change(name.trim(), value)) {
      form.reset();
      onDone();
    }
  };
  return html`
    <form class="drain" onSubmit=${add}>
      <label>New quota or weight <input name="name" required placeholder=${hint} list="limits" autocomplete="off" /></label>
      <datalist id="limits">${LIMITS.map((one) => html`<option key=${one} value=${one} />`)}</datalist>
      <label>Value <input name="value" required placeholder="8" autocomplete="off" /></label>
      <button>Add</button>
    </form>
    <p class="muted pad last">TENANT is a name, or * for all tenants without a limit of their own.</p>
  `;
}
