// The browser's own modal dialog: it keeps the focus inside, and Escape closes it.
import { post } from "../core/api.js";
import { html, useEffect, useRef } from "../core/html.js";
import { attempt } from "../core/notices.js";
import { store, useStore } from "../core/store.js";
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

const asked = store(null);

/** Asks {title, text, action, danger, act} before an action that others notice: `act` is called for a yes. */
export const confirm = (question) => asked.set(question);

/** The dialog of `confirm`, once in the page. */
export function Confirm() {
  const question = useStore(asked);
  const { title = "", text, action, danger, act } = question ?? {};
  const close = () => asked.set(null);
  const yes = () => {
    act();
    close();
  };
  return html`
    <${Dialog} title=${title} open=${question !== null} onClose=${close}>
      <p>${text}</p>
      <footer class="row">
        <button type="button" onClick=${close}>Keep</button>
        <button type="button" class=${danger ? "danger" : "primary"} onClick=${yes}>${action}</button>
      </footer>
    <//>
  `;
}

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
