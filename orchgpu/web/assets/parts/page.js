// The frame of each view: title, controls, and what stands where data are missing.
import { html, useEffect, useRef, useState } from "../core/html.js";
import { Icon } from "./state.js";

export function Page({ title, crumbs = null, aside = null, controls = null, error = null, children }) {
  useEffect(() => {
    document.title = `${title} · orchgpu`;
  }, [title]);
  return html`
    <div class="page">
      <header class="page-head">
        <div class="page-title">
          ${crumbs}
          <h1 tabIndex="-1">${title}</h1>
          ${aside}
        </div>
        ${controls && html`<div class="page-controls">${controls}</div>`}
      </header>
      ${error && html`<${ErrorLine} error=${error} />`}
      ${children}
    </div>
  `;
}

export const ErrorLine = ({ error }) => html`
  <p class="error-line" role="alert"><${Icon} name="cross" /> <span>${error.message}${error.hint && ` ${error.hint}`}</span></p>
`;

export const Empty = ({ title, children }) => html`
  <div class="empty"><p class="empty-title">${title}</p>${children && html`<p>${children}</p>`}</div>
`;

/** Rows of grey while the first answer is on its way. */
export const Waiting = ({ rows = 6 }) => html`
  <div class="waiting" role="status" aria-label="loading">
    ${Array.from({ length: rows }, (_, index) => html`<i key=${index}></i>`)}
  </div>
`;

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

/** Buttons of which one is chosen: [[value, label, count]]. */
export const Choice = ({ label, value, options, onChoose }) => html`
  <div class="choice" role="group" aria-label=${label}>
    ${options.map(([one, text, count]) => html`
      <button key=${one} type="button" aria-pressed=${value === one ? "true" : "false"} onClick=${() => onChoose(one)}>
        ${text}${count !== undefined && html`<span class="count number">${count}</span>`}
      </button>
    `)}
  </div>
`;

export const Facts = ({ facts }) => html`
  <dl class="facts">
    ${facts.filter(Boolean).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>
`;
