// Runs of a workflow: beside its graph, which one of them fills; and one run with its steps, times and jobs.
import { post } from "../core/api.js";
import { ago, bytes, capital, duration, fileName, moment, plural, shortId, words } from "../core/format.js";
import { html, useState } from "../core/html.js";
import { attempt } from "../core/notices.js";
import { hasReason, meaningOf } from "../core/reasons.js";
import { useNow, useResource } from "../core/resource.js";
import { href } from "../core/router.js";
import { confirm } from "../parts/dialog.js";
import { Axis, SpanTable, Track, inRows } from "../parts/gantt.js";
import { Empty, Facts, JobLink, Listed, Page, Panel, Waiting } from "../parts/page.js";
import { Icon, State, toneOf, toned } from "../parts/state.js";
import { Table } from "../parts/table.js";
import { Graph } from "./graph.js";

const KINDS = ["job", "lease"];

const useRun = (run, over) =>
  useResource(run && `/runs/${encodeURIComponent(run)}`, over ? {} : { kinds: KINDS, every_s: 5, pause_ms: 1000 });

/** The graph around a function; of a workflow with its newest runs, of which the chosen one fills the graph. */
export function GraphAndRuns({ graph, workflow, name }) {
  const path = workflow && `/workflows/${encodeURIComponent(workflow)}/runs`;
  const { data, error } = useResource(path, { kinds: ["job"], every_s: 10, pause_ms: 2500 });
  const [chosen, setChosen] = useState(null);
  const shown = data?.items.find((one) => one.run === chosen) ?? data?.items[0];
  const { data: run } = useRun(shown?.run, shown?.ended_s);
  const aside = shown && html`<a class="text" href=${href("runs", shown.run)}>filled by ${fileName(shown.key)}</a>`;
  return html`
    <${Panel} title="Graph" aside=${aside}><${Graph} ...${graph} current=${name} steps=${run?.steps} /><//>
    ${workflow && html`
      <${Panel} title="Runs of ${workflow}" name="runs">
        <${Listed} items=${data?.items} error=${error} empty=${html`<${Empty} title="No run yet."><code>orchgpu run ${workflow} FILE</code> starts one.<//>`}>
          <${Table} label="Runs" rows=${data?.items ?? []} keyOf=${(one) => one.run} columns=${runColumns(shown, setChosen)} />
        <//>
      <//>`}
  `;
}

const runColumns = (shown, choose) => [
  { label: "State", cell: (one) => html`<${State} state=${one.state} />` },
  { label: "Run", head: true, cell: (one) => html`<a href=${href("runs", one.run)} title=${`${one.run}: ${one.bucket}/${one.key}`}>${fileName(one.key) || shortId(one.run)}</a>` },
  { label: "Steps", cell: (one) => `${one.steps_ended} of ${one.steps}${one.running.length ? `: ${one.running.join(", ")}` : ""}` },
  { label: "Reason", wide: true, cell: (one) => html`<${Why} ...${one} />` },
  { label: "Began", wide: true, cell: (one) => html`<${Began} time_s=${one.began_s} />` },
  { label: "Duration", kind: "number", cell: (one) => html`<${Lasted} run=${one} />` },
  { label: "Graph", wide: true, cell: (one) => html`
    <button type="button" class="small quiet" aria-pressed=${one === shown ? "true" : "false"} onClick=${() => choose(one.run)}>Show</button>` },
];

const Why = ({ reason }) => hasReason(reason) && html`<span title=${meaningOf(reason)}>${words(reason)}</span>`;

const Began = ({ time_s }) => html`<span title=${moment(time_s)}>${ago(time_s, useNow(5000))}</span>`;

function Lasted({ run }) {
  const now_s = useNow(run.ended_s ? 60000 : 1000);
  return html`<span class="number">${duration(Math.max(0, (run.ended_s ?? now_s) - run.began_s))}</span>`;
}

export function RunView({ id }) {
  const [over, setOver] = useState(false);
  const { data: run, error, reload } = useRun(id, over);
  if (run && Boolean(run.ended_s) !== over) setOver(!over);
  return html`
    <${Page} title=${fileName(run?.key) || "Run"} parent=${["functions", "Functions"]} error=${error}
      aside=${run && html`<${State} state=${run.state} />`} controls=${run?.may_change && html`<${Actions} run=${run} onDone=${reload} />`}>
      ${!run ? !error && html`<${Waiting} />` : html`
        <div class="stack">
          ${hasReason(run.reason) && html`
            <div class="panel message" style=${toned(toneOf(run.state))}><strong title=${meaningOf(run.reason)}>${words(run.reason)}</strong><p>${capital(run.detail)}</p></div>`}
          <${Facts} facts=${[
            ["Run", html`<span class="mono break">${run.run}</span>`],
            ["Workflow", run.workflow],
            ["Input", html`<span class="break">${run.bucket}/${run.key}</span>`],
            run.promise && ["Promise", run.promise],
            run.tries > 1 && ["Tries", run.tries],
            ["Began", moment(run.began_s)],
            ["Duration", html`<${Lasted} run=${run} />`],
          ]} />
          <${Panel} title="Graph"><${Graph} ...${graphOf(run)} steps=${run.steps} /><//>
          <${Timeline} run=${run} />
          <${Panel} title="Jobs" aside=${plural(jobsOf(run).length, "job")}>
            <${Table} label="Jobs of the run" rows=${jobsOf(run)} keyOf=${(one) => one.job} columns=${JOB_COLUMNS} />
          <//>
          ${run.files.length > 0 && html`
            <${Panel} title="Files" name="outputs"><ul>${run.files.map((one) => html`
              <li class="entry row" key=${`${one.bucket}/${one.key}`}><span class="break">s3://${one.bucket}/${one.key}</span><span class="muted number">${bytes(one.bytes)}</span></li>`)}</ul><//>`}
        </div>`}
    <//>
  `;
}

function Actions({ run, onDone }) {
  const act = async (name, success) => {
    if (await attempt(() => post(`/runs/${run.run}/${name}`), success)) onDone();
  };
  const cancel = () => confirm({
    title: "Cancel this run?", text: "Its steps are ended; what is done stays.", action: "Cancel the run", danger: true,
    act: () => act("cancel", "The run is being cancelled."),
  });
  if (!run.ended_s) return html`<button type="button" onClick=${cancel}><${Icon} name="stop" /> Cancel</button>`;
  return run.state !== "SUCCEEDED" && html`<button type="button" onClick=${() => act("retry", "What failed runs again.")}><${Icon} name="retry" /> Retry</button>`;
}

const graphOf = (run) => ({ nodes: run.steps.map(({ name }) => ({ id: name, label: name, kind: "function" })), edges: run.edges });

const jobsOf = (run) => run.steps.flatMap((step) => step.jobs.map((job) => ({ ...job, step: step.name })));

const JOB_COLUMNS = [
  { label: "Step", cell: (one) => html`<a href=${href("functions", one.step)}>${one.step}</a>` },
  { label: "State", cell: (one) => (one.state === "-" ? "–" : html`<${State} state=${one.state} />`) },
  { label: "Job", head: true, cell: (one) => html`<${JobLink} job=${one.job} />` },
  { label: "Input", wide: true, cell: (one) => (one.files > 1 ? plural(one.files, "file") : fileName(one.key)) },
  { label: "Device", wide: true, cell: (one) => one.device || "–" },
  { label: "Ran", kind: "number", cell: (one) => html`<${Ran} job=${one} />` },
];

function Ran({ job }) {
  const now_s = useNow(job.end_s ? 60000 : 1000);
  return job.start_s ? duration(Math.max(0, (job.end_s ?? now_s) - job.start_s)) : "–";
}

/** A row for each step: the times at which its jobs ran. */
function Timeline({ run }) {
  const now_s = useNow(run.ended_s ? 60000 : 1000);
  const to_s = run.ended_s ?? now_s;
  const range = { from_s: run.began_s, to_s: to_s + Math.max(0.02 * (to_s - run.began_s), 0.001), relative: true };
  const lanes = run.steps.map(({ name, jobs }) => {
    const ran = jobs.filter((one) => one.start_s).sort((a, b) => a.start_s - b.start_s).map((one) => ({
      ...one, label: name, open: !one.end_s, colour: `var(--${toneOf(one.state)})`, href: href("jobs", one.job),
      title: `${name}, ${fileName(one.key)}: ${duration((one.end_s ?? to_s) - one.start_s)}${one.end_s ? "" : " so far"}`,
    }));
    const rows = inRows(ran);
    return { label: name, spans: rows.flatMap((spans, row) => spans.map((span) => ({ ...span, row, rows: rows.length }))) };
  });
  return html`
    <${Panel} title="Timeline" name="timeline" aside=${duration(to_s - run.began_s)}>
      <div class="gantt"><span></span><${Axis} ...${range} />
        ${lanes.map((lane) => html`<span class="gantt-label cut" title=${lane.label}>${lane.label}</span><${Track} key=${lane.label} spans=${lane.spans} ...${range} />`)}
      </div>
      <${SpanTable} label="Timeline" lanes=${lanes} relative_s=${run.began_s} />
    <//>
  `;
}
