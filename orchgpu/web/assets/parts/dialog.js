// The browser's own modal dialog: it keeps the focus inside, and Escape closes it.
import { post } from "../core/api.js";
import { html, useEffect, useRef } from "../core/html.js";
import { attempt } from "../core/notices.js";
import { Icon } from "./state.js";

export function Dialog({ title, open, onClose, children }) {
  const ref = useRef(null);
  useEffect(() => {
    const dialog = ref.current;
    if (open && !dialog.open) dialog.showModal();
    if (!open && dialog.open) dialog.close();
  }, [open]);
  return html`
    <dialog ref=${ref} class="dialog" aria-label=${title} onClose=${onClose}
      onClick=${(event) => event.target === ref.current && onClose()}>
      <div class="stack">
        <header class="row"><h2>${title}</h2>
          <button type="button" class="quiet icon-only push" aria-label="Close" onClick=${onClose}><${Icon} name="close" /></button>
        </header>
        ${open && children}
      </div>
    </dialog>
  `;
}

/** A question before an action that others notice. `asked` is null, or {title, text, action, act}. */
export const Confirm = ({ asked, onClose }) => html`
  <${Dialog} title=${asked?.title ?? ""} open=${asked !== null} onClose=${onClose}>
    <p>${asked?.text}</p>
    <footer class="row">
      <button type="button" onClick=${onClose}>Keep</button>
      <button type="button" class=${asked?.danger ? "danger" : "primary"} onClick=${() => {
        asked.act();
        onClose();
      }}>${asked?.action}</button>
    </footer>
  <//>
`;

// Drain and undrain, asked for in the fleet and in the settings.
export function drainQuestion(target, drained, onDone) {
  const act = async () => {
    const done = drained ? `${target} takes leases again.` : `${target} takes no new lease.`;
    if (await attempt(() => post(drained ? "/undrain" : "/drain", { target }), done)) onDone();
  };
  return drained
    ? { title: `Undrain ${target}?`, text: "It takes new leases again.", action: "Undrain", act }
    : {
        title: `Drain ${target}?`,
        text: "Running leases end as usual; no new lease is placed there until it is undrained.",
        action: "Drain",
        act,
      };
}
