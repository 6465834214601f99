/** The browser's own dialog: it keeps the focus inside, and closes on Escape. */
import { html, useEffect, useId, useRef, useState } from "../html.js";

/** @param {{title: string, onClose?: () => void, onSubmit?: () => void, children?: any}} props */
export function Dialog({ title, onClose, onSubmit, children }) {
  const id = useId();
  const element = useRef(/** @type {any} */ (null));
  useEffect(() => {
    const shown = element.current;
    const before = /** @type {any} */ (document.activeElement);
    shown.showModal();
    return () => {
      shown.close();
      before?.focus?.(); // by now the dialog may have left the page, and the browser would not give it back
    };
  }, []);
  return html`<dialog ref=${element} aria-labelledby=${id}
    onCancel=${(/** @type {Event} */ event) => { event.preventDefault(); onClose?.(); }}>
    <form novalidate onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); onSubmit?.(); }}>
      <h2 id=${id}>${title}</h2>${children}
    </form></dialog>`;
}

/**
 * Ask before something is done; `act` may fail, and its sentence is shown.
 * @param {{title: string, verb: string, danger?: boolean, act: () => Promise<any>, onClose: () => void, ready?: boolean, children?: any}} props
 */
export function Confirm({ title, verb, danger, act, onClose, ready = true, children }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const submit = async () => {
    if (busy || !ready) return;
    setBusy(true);
    setError("");
    try {
      await act();
      onClose();
    } catch (caught) {
      setError(caught instanceof Error ? caught.message : String(caught));
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose} onSubmit=${submit}>
    ${children}
    ${error && html`<p class="trouble" role="alert">${error}</p>`}
    <div class="actions">
      <button type="button" class="button" onClick=${onClose}>Leave as it is</button>
      <button type="submit" class=${danger ? "button danger solid" : "button primary"} disabled=${busy || !ready}>${busy ? "Working…" : verb}</button>
    </div>
  </${Dialog}>`;
}
