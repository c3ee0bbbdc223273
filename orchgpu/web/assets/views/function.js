// One function: its graph, definition and history; files are dropped anywhere on the page.
import { post, put } from "../core/api.js";
import { ago, bytes, moment, shortId } from "../core/format.js";
import { html, useRef, useState } from "../core/html.js";
import { attempt, notify } from "../core/notices.js";
import { useNow, useResource } from "../core/resource.js";
import { href } from "../core/router.js";
import { confirm } from "../parts/dialog.js";
import { Icon } from "../parts/state.js";
import { Empty, Page, Panel, Waiting } from "../parts/page.js";
import { GraphAndRuns } from "./run.js";

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
        ${data.may_upload && html`<${DropZone} path=${path} name=${name} starts=${data.workflow ? "run" : "job"} />`}
        ${data.graph && html`<${GraphAndRuns} graph=${data.graph} workflow=${data.workflow} name=${name} />`}
        ${data.schedules?.length > 0 && html`<${Schedules} schedules=${data.schedules} />`}
        <div class="columns">
          <${Definition} written=${data.definition} />
          <${Revisions} path=${path} name=${name} revisions=${data.revisions ?? []} mayRollBack=${data.may_roll_back} onDone=${reload} />
        </div>
      </div>
    <//>
  `;
}

function DropZone({ path, name, starts }) {
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
        <button type="button" class="link" onClick=${() => input.current.click()}>choose them</button>; each becomes a ${starts}.</p>
      <input ref=${input} type="file" multiple hidden aria-label="Files to upload"
        onChange=${(event) => upload([...event.target.files]).then(() => (event.target.value = ""))} />
      ${sent.length > 0 && html`
        <ul>${sent.map((one) => html`
          <li key=${one.key}>${one.file} <span class="muted">${bytes(one.size)}</span>
            ${one.job || one.run ? html` → <a class="mono" href=${href(`${starts}s`, one[starts])}>${shortId(one[starts])}</a>`
              : html` → <a href=${href("jobs", null, { function: name })}>its jobs</a>`}</li>`)}
        </ul>`}
    </section>
  `;
}

const Schedules = ({ schedules }) => html`
  <${Panel} title="Runs at fixed times">
    <ol>
      ${schedules.map((one) => html`
        <li class="entry row" key=${one.name}>
          <strong>${one.name}</strong>
          <span class="mono">${one.cron}</span>
          <span class="muted">${one.timezone}</span>
          <span class="push">${one.next_s === null ? "paused" : `next ${moment(one.next_s)}`}</span>
        </li>`)}
    </ol>
  <//>
`;

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
