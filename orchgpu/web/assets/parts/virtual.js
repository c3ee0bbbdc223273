// Lists that draw only the rows in sight: 100,000 jobs cost as many elements as forty.
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
    const element = ref.current;
    if (!element) return;
    const { scrollTop: top, clientHeight: height, clientWidth: width } = element;
    setView((before) => {
      const sameRow = Math.floor(before.top / rowHeight) === Math.floor(top / rowHeight);
      return sameRow && before.height === height && before.width === width
        ? before
        : { top, height, width };
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

/** columns: [{label, cell(row), width, narrow, wide, end, sort}]; `wide` ones are left out on a phone,
 where `narrow` is the width; `sort` is the name of the order that a click on the label asks for. */
export function VirtualTable({ label, columns, rows, keyOf, total, onEnd, onOpen, sorted = {}, onSort, rowHeight = 38 }) {
  const narrow = useNarrow();
  const shown = narrow ? columns.filter((column) => !column.wide) : columns;
  const { ref, first, last } = useWindow(rowHeight, rows.length);
  useEffect(() => {
    if (last >= rows.length - OVERSCAN) onEnd?.();
  }, [last, rows.length, onEnd]);
  return html`
    <div class="scroller" ref=${ref} tabIndex="0" role="region" aria-label=${label}>
      <table class="table" aria-rowcount=${(total ?? rows.length) + 1}>
        <colgroup>${shown.map((column) => html`<col style=${{ width: (narrow && column.narrow) || column.width || "auto" }} />`)}</colgroup>
        <thead>
          <tr aria-rowindex="1">
            ${shown.map((column) => html`<${Head} key=${column.key ?? column.label} column=${column} sorted=${sorted} onSort=${onSort} />`)}
          </tr>
        </thead>
        <tbody onKeyDown=${moveFocus}>
          <${Space} rows=${first} rowHeight=${rowHeight} />
          ${rows.slice(first, last).map((row, index) => html`
            <tr
              key=${keyOf(row)}
              aria-rowindex=${first + index + 2}
              class=${onOpen ? "opens" : ""}
              style=${{ height: `${rowHeight}px` }}
              onClick=${onOpen && ((event) => event.target.closest("a, button, label") || onOpen(row))}
            >
              ${shown.map((column) => html`<td class=${column.end ? "end" : ""}>${column.cell(row)}</td>`)}
            </tr>
          `)}
          <${Space} rows=${rows.length - last} rowHeight=${rowHeight} />
        </tbody>
      </table>
    </div>
  `;
}

function Head({ column, sorted, onSort }) {
  const is = column.sort && column.sort === sorted.by;
  const order = sorted.descending ? "descending" : "ascending";
  return html`
    <th scope="col" class=${column.end ? "end" : ""} aria-sort=${is ? order : null}>
      ${column.sort && onSort ? html`<button type="button" class="sort" onClick=${() => onSort(column.sort)}>${column.label}</button>` : column.label}
    </th>`;
}

// Rows out of sight, as one empty row of their height.
const Space = ({ rows, rowHeight }) =>
  rows > 0 && html`<tr aria-hidden="true"><td class="space" style=${{ height: `${rows * rowHeight}px` }}></td></tr>`;

// Arrow keys go from the link of one row to that of the next.
function moveFocus(event) {
  const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  const link = step && event.target.closest("tr")?.[step]?.querySelector("a");
  if (!link) return;
  event.preventDefault();
  link.focus();
}

/** Cells of equal size in as many columns as there is room for. */
export function VirtualGrid({ label, items, keyOf, cell, cellWidth, cellHeight }) {
  const [columns, setColumns] = useState(1);
  const rowCount = Math.ceil(items.length / columns);
  const { ref, first, last, width } = useWindow(cellHeight, rowCount);
  useEffect(() => {
    if (width) setColumns(Math.max(1, Math.floor((width - 32) / cellWidth)));
  }, [width, cellWidth]);
  const shown = items.slice(first * columns, last * columns);
  return html`
    <div class="scroller" ref=${ref} tabIndex="0" role="region" aria-label=${label}>
      <div class="grid-space" style=${{ height: `${rowCount * cellHeight}px` }}>
        <ul class="cells" style=${{
          transform: `translateY(${first * cellHeight}px)`,
          gridTemplateColumns: `repeat(${columns}, minmax(0, 1fr))`,
          gridAutoRows: `${cellHeight}px`,
        }}>
          ${shown.map((item) => html`<li key=${keyOf(item)}>${cell(item)}</li>`)}
        </ul>
      </div>
    </div>
  `;
}
