// One function: its graph, definition and history; files are dropped anywhere on the page.
import { post, put } from "../core/api.js";
import { ago, bytes, shortId } from "../core/format.js";
import { html, useMemo, useRef, useState } from "../core/html.js";
import { attempt, notify } from "../core/notices.js";
import { useNow, useResource } from "../core/resource.js";
import { href } from "../core/router.js";
import { confirm } from "../parts/dialog.js";
import { Icon } from "../parts/state.js";
import { Empty, Page, Panel, Waiting } from "../parts/page.js";

export function FunctionView({ id: name }) {
  const path = `/functions/${encodeURIComponent(name)}`;
  const { data, error, reload } = useResource(path, { every_s: 30 });
  const parent = ["functions", "Functions"];
  if (!data) return html`<${Page} title=${name} parent=${parent} error=${error}>${!error && html`<${Waiting} />`}<//>`;
  return html`
    <${Page} title=${name} parent=${parent} error=${error}
      controls=${data.jobs_kept ? html`<a class="button" href=${href("jobs", null, { function: name })}>Its jobs</a>`
        : html`<a class="button" href=${href("jobs", null, { state: "LETTERS", function: name })}>Its dead letters</a>`}>
      <div class="stack">
        ${data.may_upload && html`<${DropZone} path=${path} name=${name} />`}
        ${data.graph && html`<${Panel} title="Graph"><${Graph} ...${data.graph} current=${name} /><//>`}
        <div class="columns">
          <${Definition} written=${data.definition} />
          <${Revisions} path=${path} name=${name} revisions=${data.revisions ?? []} mayRollBack=${data.may_roll_back} onDone=${reload} />
        </div>
      </div>
    <//>
  `;
}

function DropZone({ path, name }) {
  const [over, setOver] = useState(false);
  const [sent, setSent] = useState([]); // newest first: {file, job, key}
  const input = useRef(null);
  const upload = async (files) => {
    for (const file of files) {
      await attempt(async () => {
        const answer = await put(`${path}/files/${encodeURIComponent(file.name)}`, file);
        setSent((before) => [{ file: file.name, size: file.size, ...answer }, ...before].slice(0, 8));
      }, `${file.name} is uploaded to ${name}.`);
    }
  };
  const onDrop = (event) => {
    event.preventDefault();
    setOver(false);
    const files = [...event.dataTransfer.files];
    if (files.length) upload(files);
    else notify("Only files can be dropped here.", { kind: "error" });
  };
  const onDragOver = (event) => {
    event.preventDefault(); // without it the browser opens the file instead
    setOver(true);
  };
  return html`
    <section class="drop text${over ? " over" : ""}" aria-label="Upload" data-drop
      onDragOver=${onDragOver} onDragLeave=${() => setOver(false)} onDrop=${onDrop}>
      <p><${Icon} name="upload" /> Drop files here, or${" "}
        <button type="button" class="link" onClick=${() => input.current.click()}>choose them</button>; each becomes a job.</p>
      <input ref=${input} type="file" multiple hidden aria-label="Files to upload"
        onChange=${(event) => upload([...event.target.files]).then(() => (event.target.value = ""))} />
      ${sent.length > 0 && html`
        <ul>${sent.map((one) => html`
          <li key=${one.key}>${one.file} <span class="muted">${bytes(one.size)}</span>
            ${one.job ? html` → <a class="mono" href=${href("jobs", one.job)}>${shortId(one.job)}</a>`
              : html` → <a href=${href("jobs", null, { function: name })}>its jobs</a>`}</li>`)}
        </ul>`}
    </section>
  `;
}

const Definition = ({ written }) => html`
  <${Panel} title="Definition" name="definition"
    aside=${written && html`<span class="muted text" title="values of variables are hidden">${written.file}, from line ${written.line}</span>`}>
    ${written ? html`<pre tabIndex="0" aria-label="Definition as text">${written.text}</pre>`
      : html`<${Empty} title="Its file is not known."><code>orchgpu deploy</code> keeps the text from now on.<//>`}
  <//>
`;

function Revisions({ path, name, revisions, mayRollBack, onDone }) {
  const now_s = useNow(30000);
  const ask = (revision) => confirm({
    title: `Roll ${name} back?`, text: `Revision ${revision} becomes the current one; jobs that run now end with theirs.`, action: "Roll back",
    act: async () => {
      if (await attempt(() => post(`${path}/rollback`, { revision }), `${name} is at revision ${revision}.`)) onDone();
    },
  });
  return html`
    <${Panel} title="History">
      ${revisions.length === 0 && html`<${Empty} title="No earlier revision." />`}
      <ol>
        ${revisions.map((one) => html`
          <li class="entry row" key=${one.revision}>
            <strong>${one.revision}</strong>
            <span>${one.note}</span>
            <span class="muted">${ago(one.changed_s, now_s)}</span>
            ${one.current ? html`<span class="chip accent push">current</span>`
              : mayRollBack && html`<button type="button" class="small push" onClick=${() => ask(one.revision)}>Roll back<span class="visually-hidden"> to ${one.revision}</span></button>`}
          </li>`)}
      </ol>
    <//>
  `;
}

// The graph of a function: functions and places of objects as boxes in layers from left to right.
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

export function Graph({ nodes, edges, current }) {
  const { boxes, width, height } = useMemo(() => placed(nodes, edges), [nodes, edges]);
  const text = edges.map(({ from, to }) => `${boxes.get(from)?.label ?? from} to ${boxes.get(to)?.label ?? to}`).join(", ");
  return html`
    <div class="graph" tabIndex="0" role="region" aria-label="Graph, scrolls sideways">
      <svg width=${width} height=${height} viewBox="0 0 ${width} ${height}" role="img" aria-label=${text}>
        <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" /></marker></defs>
        ${edges.map(({ from, to }) => boxes.has(from) && boxes.has(to) && html`
          <${Edge} key=${`${from} ${to}`} from=${boxes.get(from)} to=${boxes.get(to)} />`)}
        ${[...boxes.values()].map((box) => html`<${Box} key=${box.id} ...${box} current=${box.label === current || box.id === current} />`)}
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

const Box = ({ x, y, label, id, kind, device, current }) => html`
  <g class="box ${current ? "current" : ""}" transform="translate(${x} ${y})">
    <title>${nameOf(kind)} ${label ?? id}${device ? `: ${device}` : ""}</title>
    <rect width=${BOX.width} height=${BOX.height} rx="8" />
    <text class="box-kind" x="12" y="17">${cut(device || nameOf(kind))}</text>
    <text x="12" y="33">${cut(label ?? id)}</text>
  </g>
`;

const nameOf = (kind) => (kind === "place" ? "bucket" : kind);

const cut = (text) => (text.length > LABEL_MAX ? `${text.slice(0, LABEL_MAX - 1)}…` : text);
