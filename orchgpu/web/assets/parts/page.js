// The frame of each view and of its parts: title, controls, panels, and what stands where data are missing.
import { html, useEffect, useRef, useState } from "../core/html.js";
import { shortId } from "../core/format.js";
import { href } from "../core/router.js";
import { Icon } from "./state.js";

/** `parent`: [view, name] of the list that this page is one thing of. */
export function Page({ title, parent = null, aside = null, controls = null, error = null, children }) {
  useEffect(() => {
    document.title = `${title} · orchgpu`;
  }, [title]);
  return html`
    <div class="page">
      <header class="page-head row">
        <div class="page-title row">
          ${parent && html`<a class="row text" href=${href(parent[0])}><${Icon} name="back" />${parent[1]}</a>`}
          <h1 tabIndex="-1">${title}</h1>
          ${typeof aside === "string" ? html`<p class="sub muted text">${aside}</p>` : aside}
        </div>
        ${controls && html`<div class="controls row">${controls}</div>`}
      </header>
      ${error && html`<${ErrorLine} error=${error} />`}
      ${children}
    </div>
  `;
}

/** A surface with a title; its name for the style and the tests is that of its content. */
export const Panel = ({ title, name = "", aside = null, children }) => html`
  <section class="panel ${name}" aria-label=${title}>
    <header class="panel-head inset row"><h2>${title}</h2>${typeof aside === "string" ? html`<span class="muted text">${aside}</span>` : aside}</header>
    ${children}
  </section>
`;

export const ErrorLine = ({ error }) => html`
  <p class="message error" role="alert"><${Icon} name="cross" /> <span>${error.message}${error.hint && ` ${error.hint}`}</span></p>
`;

export const Empty = ({ title, children }) => html`
  <div class="empty"><p>${title}</p>${children && html`<p>${children}</p>`}</div>
`;

/** Rows of grey while the first answer is on its way. */
export const Waiting = () => html`
  <div class="waiting stack" role="status" aria-label="loading">
    ${Array.from({ length: 6 }, (_, index) => html`<i key=${index}></i>`)}
  </div>
`;

/** What stands for a list until it has items: nothing beside its page's error, its loading, or why it is empty. */
export function Listed({ items, loading, error, empty, children }) {
  if (items?.length) return children;
  if (error) return null;
  return (loading ?? !items) ? html`<${Waiting} />` : empty;
}

/** A search field. It has its own text while it is in use: the answer to a letter may come after the next one. */
export function Search({ value, onInput, label }) {
  const field = useRef(null);
  const [text, setText] = useState(value);
  useEffect(() => {
    if (document.activeElement !== field.current) setText(value);
  }, [value]);
  const onText = (event) => {
    setText(event.target.value);
    onInput(event.target.value);
  };
  return html`
    <label class="search">
      <${Icon} name="search" />
      <input ref=${field} data-search type="search" value=${text} placeholder=${label} aria-label=${label} onInput=${onText} />
      <kbd aria-hidden="true">/</kbd>
    </label>
  `;
}

/** True when the text, without regard to case, is part of one of these. */
export const contains = (text, ...parts) => parts.some((one) => one?.toLowerCase().includes(text.toLowerCase()));

/** Buttons of which one is chosen: [[value, label, count]]. */
export const Choice = ({ label, value, options, onChoose }) => html`
  <div class="choice" role="group" aria-label=${label}>
    ${options.map(([one, text, count]) => html`
      <button key=${one} type="button" class="quiet small" aria-pressed=${value === one ? "true" : "false"} onClick=${() => onChoose(one)}>
        ${text}${count !== undefined && html`<span class="fine number">${count}</span>`}
      </button>
    `)}
  </div>
`;

export const Facts = ({ facts }) => html`
  <dl class="facts row">
    ${facts.filter(Boolean).map(([name, value]) => html`<div key=${name}><dt class="fine">${name}</dt><dd class="text">${value}</dd></div>`)}
  </dl>
`;

/** A job in a row: its id, or on a phone the name of its file, which people know. */
export const JobLink = ({ job, name }) => html`
  <a class="mono" href=${href("jobs", job)} title=${job}><span class="desk">${shortId(job)}</span><span class="phone">${name || shortId(job)}</span></a>
`;

/** A text that is its own tooltip, because its place may cut it; "–" for none. */
export const Cut = ({ text, title = text, kind = "" }) => html`<span class=${kind} title=${title}>${text ?? "–"}</span>`;
