// A series over time: uPlot's canvas, and the same numbers as a table beside it.
import { html, useEffect, useRef } from "../core/html.js";
import { clock } from "../core/format.js";
import { useStore } from "../core/store.js";
import { scheme } from "../core/theme.js";
import { AsTable } from "./table.js";
import uPlot from "../vendor/uplot.js";

const HEIGHT = 150;

/** series: [{label, values, colour: "--series-1"}]; `text` formats a value with its unit, `figure`
 makes the one of a whole series, and `of` names it; `note` is a sentence below the title. */
export function Chart({ title, time_s, series, text, figure, of, note, max = null }) {
  const holder = useRef(null);
  const plot = useRef(null);
  const colours = useStore(scheme); // a canvas has no CSS: it is drawn again in the other scheme
  const shape = series.map((one) => one.label).join();
  const data = [time_s, ...series.map((one) => one.values)];
  useEffect(() => {
    const element = holder.current;
    plot.current = new uPlot(optionsOf(element, series, text, max), data, element);
    const observer = new ResizeObserver(() =>
      plot.current.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [shape, colours]);
  useEffect(() => plot.current?.setData(data), [time_s]);
  return html`
    <figure class="chart panel">
      <figcaption class="row inset">
        <h3>${title}</h3>
        <span class="legend row fine">
          ${series.map((one) => html`
            <span><i class="mark" style=${{ background: `var(${one.colour})` }}></i>${one.label}
              <b class="number">${text(figure(one.values))}</b></span>
          `)}
          <span>${of}</span>
        </span>
        <p class="fine">${note}</p>
      </figcaption>
      <div class="chart-canvas" ref=${holder} aria-hidden="true"></div>
      <${AsTable} label=${title} rows=${sampled(time_s)} columns=${columnsOf(time_s, series, text)} />
    </figure>
  `;
}

function optionsOf(element, series, text, max) {
  const css = getComputedStyle(element);
  const colour = (name) => {
    element.style.color = `var(${name})`; // a value for each scheme: the computed one is that of this scheme
    return css.color;
  };
  const axis = { stroke: colour("--text-muted"), grid: { stroke: colour("--line-soft"), width: 1 },
                 ticks: { show: false }, font: `11px ${css.fontFamily}` };
  return {
    width: element.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    scales: { y: { range: (_plot, _low, high) => [0, max ?? Math.max(high * 1.15, 1e-6)] } },
    axes: [
      { ...axis, size: 28, values: (_plot, times) => times.map((time) => clock(time).slice(0, 5)) },
      { ...axis, size: 60, space: 26, values: (_plot, values) => values.map(text) },
    ],
    series: [
      {},
      ...series.map((one) => ({
        label: one.label,
        stroke: colour(one.colour),
        fill: series.length === 1 ? colour(one.colour).replace(/rgba?(.*)\)/, "rgba$1, 0.13)") : undefined,
        width: 1.75,
        spanGaps: true, // a step in which nothing ended has no median
        points: { show: (plot, index) => isSparse(plot.data[index]), size: 5 },
      })),
    ],
  };
}

const POINTS_SHOWN_MAX = 60; // of fewer values each is a dot as well: one alone has no line

const isSparse = (values) => values.filter((value) => value != null).length <= POINTS_SHOWN_MAX;

const ROWS_MAX = 60; // of the table: every n-th point of a longer series

function sampled(time_s) {
  const step = Math.max(1, Math.ceil(time_s.length / ROWS_MAX));
  return time_s.map((_, index) => index).filter((index) => index % step === 0);
}

const columnsOf = (time_s, series, text) => [
  { label: "Time", head: true, cell: (index) => clock(time_s[index]) },
  ...series.map(({ label, values }) => ({ label, cell: (index) => text(values[index]) })),
];
