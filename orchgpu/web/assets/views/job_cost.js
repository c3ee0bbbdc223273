// Cost of one job, by part. A local system has none, and then nothing is shown.
import { html } from "../core/html.js";
import { words } from "../core/format.js";
import { useResource } from "../core/resource.js";
import { isEnded } from "../parts/state.js";

const money = (value, currency) => (typeof value === "number" ? `${value.toFixed(6)} ${currency}` : String(value));

export function Cost({ path, state }) {
  const { data } = useResource(isEnded(state) ? `${path}/cost` : null);
  const parts = partsOf(data);
  if (!parts.length) return null;
  const currency = data.currency ?? "USD";
  return html`
    <section class="panel cost" aria-label="Cost">
      <header class="panel-head"><h2>Cost</h2>${data.total != null && html`<span class="number">${money(data.total, currency)}</span>`}</header>
      <table class="table plain"><tbody>
        ${parts.map(([name, value]) => html`<tr key=${name}><th scope="row">${words(name)}</th><td class="end number">${money(value, currency)}</td></tr>`)}
      </tbody></table>
    </section>
  `;
}

/** [[name, amount]] of a list of parts, or of the parts as an object. */
function partsOf(cost) {
  if (!cost) return [];
  const parts = cost.parts ?? cost.items ?? {};
  if (Array.isArray(parts)) return parts.map((part) => [part.name, part.amount ?? part.usd]);
  return Object.entries(parts);
}
