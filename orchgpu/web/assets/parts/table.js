// Tables, and lists that draw only the rows in sight: 100,000 jobs cost as many elements as forty.
import { html, useCallback, useEffect, useLayoutEffect, useRef, useState } from "../core/html.js";

const OVERSCAN = 6; // rows above and below, so that a fast scroll shows few gaps

const narrowScreen = matchMedia("(max-width: 720px)");

export function useNarrow() {
  const [narrow, setNarrow] = useState(narrowScreen.matches);
  useEffect(() => {
    const changed = () => setNarrow(narrowScreen.matches);
    narrowScreen.addEventListener("change", changed);
    return () => narrowScreen.removeEventListener("change", changed);
  }, []);
  return narrow;
}

/** {ref, first, last, width}: the rows in sight of a scrolling element. */
export function useWindow(rowHeight, rowCount) {
  const ref = useRef(null);
  const [view, setView] = useState({ top: 0, height: 800, width: 0 });
  const measure = useCallback(() => {
    if (!ref.current) return;
    const { scrollTop: top, clientHeight: height, clientWidth: width } = ref.current;
    setView((before) => {
      const sameRow = Math.floor(before.top / rowHeight) === Math.floor(top / rowHeight);
      return sameRow && before.height === height && before.width === width ? before : { top, height, width };
    });
  }, [rowHeight]);
  useLayoutEffect(() => {
    const element = ref.current;
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    element.addEventListener("scroll", measure, { passive: true });
    measure();
    return () => {
      observer.disconnect();
      element.removeEventListener("scroll", measure);
    };
  }, [measure]);
  useLayoutEffect(measure, [rowCount]); // a shorter list may move the scroll position
  const first = Math.max(0, Math.floor(view.top / rowHeight) - OVERSCAN);
  const last = Math.min(rowCount, Math.ceil((view.top + view.height) / rowHeight) + OVERSCAN);
  return { ref, first: Math.min(first, last), last, width: view.width };
}

/** columns: [{label, cell(row), width, narrow, wide, kind, head, sort}]; `wide` ones are left out on a phone,
 where `narrow` is the width; `head` cells name their row; `sort` is the order that a click on the label asks for. */
export function Table({ label, columns, rows, keyOf }) {
  const shown = useShown(columns);
  return html`
    <div class="scroller" tabIndex="0" role="region" aria-label=${label}>
      <table class="table">
        <${Head} columns=${shown} />
        <tbody>${rows.map((row, index) => html`<tr key=${keyOf ? keyOf(row) : index}><${Cells} columns=${shown} row=${row} /></tr>`)}</tbody>
      </table>
    </div>
  `;
}

/** The same with rows of one height, of which `onEnd` asks for more; `onOpen` opens one by a click. */
export function EndlessTable({ label, columns, rows, keyOf, total, onEnd, onOpen, sorted, onSort, rowHeight = 38 }) {
  const shown = useShown(columns);
  const { ref, first, last } = useWindow(rowHeight, rows.length);
  useEffect(() => {
    if (last >= rows.length - OVERSCAN) onEnd();
  }, [last, rows.length, onEnd]);
  return html`
    <div class="scroller endless" ref=${ref} tabIndex="0" role="region" aria-label=${label}>
      <table class="table" aria-rowcount=${(total ?? rows.length) + 1}>
        <colgroup>${shown.map((column) => html`<col style=${{ width: column.width ?? "auto" }} />`)}</colgroup>
        <${Head} columns=${shown} sorted=${sorted} onSort=${onSort} />
        <tbody onKeyDown=${moveFocus}>
          <${Space} height=${first * rowHeight} />
          ${rows.slice(first, last).map((row, index) => html`
            <tr key=${keyOf(row)} aria-rowindex=${first + index + 2} class="opens" style=${{ height: `${rowHeight}px` }}
              onClick=${(event) => event.target.closest("a, button, label") || onOpen(row)}>
              <${Cells} columns=${shown} row=${row} />
            </tr>
          `)}
          <${Space} height=${(rows.length - last) * rowHeight} />
        </tbody>
      </table>
    </div>
  `;
}

function useShown(columns) {
  const narrow = useNarrow();
  if (!narrow) return columns;
  return columns.filter((column) => !column.wide).map((column) => ({ ...column, width: column.narrow ?? column.width }));
}

const Cells = ({ columns, row }) => columns.map(({ head, kind, cell }) =>
  head ? html`<th scope="row" class=${kind}>${cell(row)}</th>` : html`<td class=${kind}>${cell(row)}</td>`);

const Head = ({ columns, sorted = {}, onSort }) => columns.some(({ label }) => label) && html`
  <thead><tr aria-rowindex="1">${columns.map(({ key, label, sort, kind }) => html`
    <th scope="col" key=${key ?? label} class=${kind} aria-sort=${sort && sort === sorted.by ? (sorted.descending ? "descending" : "ascending") : null}>
      ${sort && onSort ? html`<button type="button" class="link" onClick=${() => onSort(sort)}>${label}</button>` : label}
    </th>`)}
  </tr></thead>
`;

// Rows out of sight, as one empty row of their height.
const Space = ({ height }) => height > 0 && html`<tr aria-hidden="true"><td class="space" style=${{ height: `${height}px` }}></td></tr>`;

// Arrow keys go from the link of one row to that of the next.
function moveFocus(event) {
  const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  const link = step && event.target.closest("tr")?.[step]?.querySelector("a");
  if (!link) return;
  event.preventDefault();
  link.focus();
}

/** A table behind a heading, for a screen reader and for copying what a drawing shows. */
export const AsTable = (table) => html`
  <details class="as-table fine"><summary>As a table</summary><${Table} ...${table} label="${table.label} as a table" /></details>
`;

/** Cells of equal size in as many columns as there is room for. */
export function EndlessGrid({ label, items, keyOf, cell, cellWidth, cellHeight }) {
  const [columns, setColumns] = useState(1);
  const rowCount = Math.ceil(items.length / columns);
  const { ref, first, last, width } = useWindow(cellHeight, rowCount);
  useEffect(() => {
    if (width) setColumns(Math.max(1, Math.floor((width - 32) / cellWidth)));
  }, [width, cellWidth]);
  const style = {
    transform: `translateY(${first * cellHeight}px)`,
    gridTemplateColumns: `repeat(${columns}, minmax(0, 1fr))`,
    gridAutoRows: `${cellHeight}px`,
  };
  return html`
    <div class="scroller endless" ref=${ref} tabIndex="0" role="region" aria-label=${label}>
      <div class="grid-space" style=${{ height: `${rowCount * cellHeight}px` }}>
        <ul class="cells" style=${style}>
          ${items.slice(first * columns, last * columns).map((item) => html`<li key=${keyOf(item)}>${cell(item)}</li>`)}
        </ul>
      </div>
    </div>
  `;
}
