// Cost of one job that succeeded, alone on its device and shared, by the prices that the server states.
import { html } from "../core/html.js";
import { duration, mebibytes } from "../core/format.js";
import { useResource } from "../core/resource.js";

const money = (usd) => `${usd.toFixed(6)} USD`;

export function Cost({ path, state }) {
  const { data } = useResource(state === "SUCCEEDED" ? `${path}/cost` : null);
  if (!data) return null;
  const parts = [["Function", data.function_usd], ["Device", data.device_usd]];
  return html`
    <section class="panel cost" aria-label="Cost">
      <header class="panel-head"><h2>Cost</h2><span class="number">${money(data.total_usd)}</span>
        <span class="muted">${duration(data.ran_s)}, ${mebibytes(data.memory_mib)} of the function</span></header>
      <table class="table plain"><tbody>
        ${parts.map(([name, usd]) => html`<tr key=${name}><th scope="row">${name}</th><td class="end number">${money(usd)}</td></tr>`)}
        ${data.sharers.filter((one) => one.sharers > 1).map((one) => html`
          <tr key=${one.sharers}><th scope="row">In total, with ${one.sharers} jobs on the device</th><td class="end number">${money(one.total_usd)}</td></tr>`)}
      </tbody></table>
    </section>
  `;
}
