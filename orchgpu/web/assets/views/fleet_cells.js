// Cells of a large fleet: one for each host, with its devices in use and two ratios.
import { percent } from "../core/format.js";
import { html, useMemo, useState } from "../core/html.js";
import { href } from "../core/router.js";
import { Choice } from "../parts/page.js";
import { toneOf } from "../parts/state.js";
import { VirtualGrid } from "../parts/virtual.js";

const ORDERS = {
  name: { label: "Name", compare: (a, b) => a.host.localeCompare(b.host, "en", { numeric: true }) },
  busy: { label: "Busiest", compare: (a, b) => b.busy / b.devices - a.busy / a.devices },
  memory: { label: "Memory", compare: (a, b) => b.memory_used_ratio - a.memory_used_ratio },
};

export function FleetCells({ hosts }) {
  const [order, setOrder] = useState("name");
  const sorted = useMemo(() => [...hosts].sort(ORDERS[order].compare), [hosts, order]);
  const options = Object.entries(ORDERS).map(([name, { label }]) => [name, label]);
  return html`
    <div class="cells-head">
      <${Choice} label="Order of hosts" value=${order} options=${options} onChoose=${setOrder} />
      <p class="legend"><span><i class="swatch memory"></i>memory</span><span><i class="swatch compute"></i>compute</span></p>
    </div>
    <${VirtualGrid} label="Hosts" items=${sorted} keyOf=${(host) => host.host}
      cell=${(host) => html`<${Cell} ...${host} />`} cellWidth=${132} cellHeight=${64} />
  `;
}

function Cell({ host, state, devices, busy, memory_used_ratio: memory, compute_used_ratio: compute }) {
  const text = `${host}, ${state}: ${busy} of ${devices} devices busy, memory ${percent(100 * memory)}, compute ${percent(100 * compute)}`;
  return html`
    <a class="cell tone-${toneOf(state)}" href=${href("fleet", null, { host })} title=${text} aria-label=${text}>
      <span class="cell-name">${host}</span>
      <span class="cell-count number">${busy}/${devices}</span>
      <i class="cell-bar memory"><i style=${{ width: `${100 * memory}%` }}></i></i>
      <i class="cell-bar compute"><i style=${{ width: `${100 * compute}%` }}></i></i>
    </a>
  `;
}
