// Logs of one job, as they are written. Only the lines in sight are elements.
import { urlOf } from "../core/api.js";
import { clock } from "../core/format.js";
import { html, useEffect, useRef, useState } from "../core/html.js";
import { readEvents } from "../core/sse.js";
import { Empty, Panel } from "../parts/page.js";
import { useWindow } from "../parts/table.js";

const LINE_PX = 20;
const LINES_MAX = 20000; // kept in memory; older ones are in the log store
const RETRY_MS = 1500;

export function Logs({ path, ended }) {
  const { lines, state } = useLines(path, ended);
  const [follow, setFollow] = useState(true);
  const { ref, first, last } = useWindow(LINE_PX, lines.length);
  useEffect(() => {
    if (follow && ref.current) ref.current.scrollTop = ref.current.scrollHeight;
  }, [lines, follow]);
  const onScroll = (event) => {
    const { scrollTop, scrollHeight, clientHeight } = event.target;
    setFollow(scrollHeight - scrollTop - clientHeight < LINE_PX * 1.5);
  };
  return html`
    <${Panel} title="Logs" name="logs" aside=${html`
      <span class="muted text">${state === "open" ? (ended ? "reading" : "live") : state === "failed" ? "not available" : `${lines.length} lines`}</span>
      ${!follow && html`<button type="button" class="small" onClick=${() => setFollow(true)}>To the end</button>`}`}>
      <div class="log" ref=${ref} onScroll=${onScroll} tabIndex="0" role="log" aria-label="Lines of the log" aria-live="off">
        ${lines.length === 0 && html`<${Empty} title=${state === "open" ? "No line yet." : "The log has no line."} />`}
        <div class="log-space" style=${{ height: `${lines.length * LINE_PX}px` }}>
          <ol style=${{ transform: `translateY(${first * LINE_PX}px)` }}>
            ${lines.slice(first, last).map((line) => html`
              <li key=${line.number} class=${`from-${line.stream}`}>
                <time>${clock(line.time_s)}</time><i>${line.stream}</i><span>${line.text}</span>
              </li>`)}
          </ol>
        </div>
      </div>
    <//>
  `;
}

/** Lines of the stream; connects again until the job has ended. */
function useLines(path, ended) {
  const [lines, setLines] = useState([]);
  const [state, setState] = useState("open");
  const isEnded = useRef(ended);
  isEnded.current = ended;
  useEffect(() => {
    const control = new AbortController();
    const append = collector(setLines);
    follow(`${urlOf(path)}/logs`, control.signal, append, () => isEnded.current).then(setState);
    return () => control.abort();
  }, [path]);
  return { lines, state };
}

async function follow(address, signal, append, isOver) {
  let failures = 0;
  let complete = false;
  while (!signal.aborted) {
    const over = isOver(); // read before the request: lines may come until its end
    try {
      await readEvents(address, {
        signal,
        onOpen() {
          failures = 0;
          append.clear(); // each answer begins with the first line
        },
        onEvent(event) {
          if (event.name === "line") append.line(JSON.parse(event.data));
          if (event.name === "end") complete = true;
        },
      });
    } catch {
      failures += 1;
    }
    if (over || complete) return failures ? "failed" : "ended";
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
  return "ended";
}

// Lines arrive in bursts: they are shown once a frame.
function collector(setLines) {
  let pending = [];
  let number = 0;
  let scheduled = false;
  const flush = () => {
    scheduled = false;
    const added = pending;
    pending = [];
    setLines((before) => [...before, ...added].slice(-LINES_MAX));
  };
  return {
    line(line) {
      for (const text of String(line.text ?? "").replace(/\n$/, "").split("\n")) {
        pending.push({ ...line, text, number: (number += 1) });
      }
      if (!scheduled) requestAnimationFrame(flush);
      scheduled = true;
    },
    clear() {
      pending = [];
      setLines([]);
    },
  };
}
