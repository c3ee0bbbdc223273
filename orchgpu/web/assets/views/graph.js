// A graph: functions and places of objects as boxes in layers from left to right, filled by the steps of a run.
import { duration, words } from "../core/format.js";
import { html, useMemo } from "../core/html.js";
import { toneOf, toned } from "../parts/state.js";

const BOX = { width: 204, height: 44, gapX: 56, gapY: 18, margin: 8 };

/** Layer of each node: the longest way from a node without an incoming edge. */
export function layersOf(nodes, edges) {
  const layer = new Map(nodes.map((node) => [node.id, 0]));
  // as many passes as nodes: enough for any path, and a cycle ends too
  for (let pass = 0; pass < nodes.length; pass += 1) {
    let moved = false;
    for (const { from, to } of edges) {
      const next = (layer.get(from) ?? 0) + 1;
      if (layer.has(to) && next > layer.get(to) && next < nodes.length) {
        layer.set(to, next);
        moved = true;
      }
    }
    if (!moved) break;
  }
  return layer;
}

function placed(nodes, edges) {
  const layer = layersOf(nodes, edges);
  const filled = [];
  const boxes = new Map();
  for (const node of nodes) {
    const column = layer.get(node.id);
    const row = (filled[column] = (filled[column] ?? -1) + 1);
    boxes.set(node.id, {
      ...node,
      x: BOX.margin + column * (BOX.width + BOX.gapX),
      y: BOX.margin + row * (BOX.height + BOX.gapY),
    });
  }
  const width = BOX.margin * 2 + filled.length * (BOX.width + BOX.gapX) - BOX.gapX;
  const height = BOX.margin * 2 + (Math.max(0, ...filled) + 1) * (BOX.height + BOX.gapY) - BOX.gapY;
  return { boxes, width, height };
}

/** `steps`: those of a run, whose states fill the boxes of their functions. */
export function Graph({ nodes, edges, current, steps }) {
  const { boxes, width, height } = useMemo(() => placed(nodes, edges), [nodes, edges]);
  const text = edges.map(({ from, to }) => `${boxes.get(from)?.label ?? from} to ${boxes.get(to)?.label ?? to}`).join(", ");
  return html`
    <div class="graph" tabIndex="0" role="region" aria-label="Graph, scrolls sideways">
      <svg width=${width} height=${height} viewBox="0 0 ${width} ${height}" role="img" aria-label=${text}>
        <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" /></marker></defs>
        ${edges.map(({ from, to }) => boxes.has(from) && boxes.has(to) && html`
          <${Edge} key=${`${from} ${to}`} from=${boxes.get(from)} to=${boxes.get(to)} />`)}
        ${[...boxes.values()].map((box) => html`<${Box} key=${box.id} ...${box} step=${box.kind === "function" && steps?.find((one) => one.name === box.label)} current=${box.label === current || box.id === current} />`)}
      </svg>
    </div>
  `;
}

function Edge({ from, to }) {
  const x1 = from.x + BOX.width;
  const y1 = from.y + BOX.height / 2;
  const y2 = to.y + BOX.height / 2;
  const bend = BOX.gapX / 2;
  return html`<path class="edge" marker-end="url(#arrow)" d="M${x1} ${y1}C${x1 + bend} ${y1} ${to.x - bend} ${y2} ${to.x - 1} ${y2}" />`;
}

const LABEL_MAX = 28; // letters in a box

function Box({ x, y, label, id, kind, device, current, step }) {
  const text = step ? stepText(step) : device || nameOf(kind);
  const part = step && (step.state === "STARTED" ? step.ended / (step.count || 1) : Number(["DONE", "FAILED"].includes(step.state)));
  return html`
    <g class="box ${current ? "current" : ""} ${step ? "step" : ""}" style=${step && toned(toneOf(step.state))} transform="translate(${x} ${y})">
      <title>${nameOf(kind)} ${label ?? id}: ${text}${step?.device ? `, ${step.device}` : ""}</title>
      <rect width=${BOX.width} height=${BOX.height} rx="8" />
      ${part > 0 && html`<rect class="part" width=${part * BOX.width} height=${BOX.height} rx="8" />`}
      <text class="box-kind" x="12" y="17">${cut(text)}</text>
      <text x="12" y="33">${cut(label ?? id)}</text>
    </g>
  `;
}

const stepText = ({ state, count, ended, seconds, device }) =>
  [words(state), count > 1 && `${ended} of ${count}`, seconds !== null && duration(seconds), device].filter(Boolean).join(" · ");

const nameOf = (kind) => (kind === "place" ? "bucket" : kind);

const cut = (text) => (text.length > LABEL_MAX ? `${text.slice(0, LABEL_MAX - 1)}…` : text);
