/** One of a few: segments are radio buttons, tabs are tabs; both are walked with the arrow keys. */
import { html, useId, useRef } from "../html.js";

/** @param {{label: string, options: [string, string][], value: string, onChange: (value: string) => void}} props */
export function Segmented({ label, options, value, onChange }) {
  const id = useId();
  return html`<div class="segmented" role="radiogroup" aria-label=${label}>
    ${options.map(([key, word]) => html`<label key=${key}><input type="radio" name=${id} value=${key} checked=${key === value}
      onChange=${() => onChange(key)} />${word}</label>`)}
  </div>`;
}

/** @param {{label: string, tabs: [string, string][], value: string, onChange: (value: string) => void, children?: any}} props */
export function Tabs({ label, tabs, value, onChange, children }) {
  const id = useId();
  const list = useRef(/** @type {any} */ (null));
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    const at = tabs.findIndex(([key]) => key === value);
    const moves = { ArrowRight: (at + 1) % tabs.length, ArrowLeft: (at + tabs.length - 1) % tabs.length, Home: 0, End: tabs.length - 1 };
    const to = /** @type {Record<string, number>} */ (moves)[event.key];
    if (to === undefined) return;
    event.preventDefault();
    onChange(tabs[to][0]);
    list.current?.children[to]?.focus();
  };
  return html`<div>
    <div class="tabs" role="tablist" aria-label=${label} ref=${list} onKeyDown=${onKeyDown}>
      ${tabs.map(([key, word]) => html`<button key=${key} type="button" role="tab" id=${`${id}-${key}`} aria-selected=${key === value ? "true" : "false"}
        aria-controls=${`${id}-panel`} tabindex=${key === value ? 0 : -1} onClick=${() => onChange(key)}>${word}</button>`)}
    </div>
    <div role="tabpanel" id=${`${id}-panel`} aria-labelledby=${`${id}-${value}`}>${children}</div>
  </div>`;
}

/** @param {{label: string, value: string, options: [string, string][], onChange: (value: string) => void}} props */
export function Select({ label, value, options, onChange }) {
  const id = useId();
  return html`<div class="field"><label for=${id}>${label}</label>
    <select id=${id} class="input" value=${value} onChange=${(/** @type {any} */ event) => onChange(event.target.value)}>
      ${options.map(([key, word]) => html`<option key=${key} value=${key} selected=${key === value}>${word}</option>`)}
    </select></div>`;
}

/** @param {{label: string, value: string, onInput: (value: string) => void, type?: string, placeholder?: string, hint?: string, list?: string[], invalid?: boolean, mono?: boolean, class?: string}} props */
export function Field({ label, value, onInput, type = "text", placeholder, hint, list, invalid, mono, class: extra }) {
  const id = useId();
  return html`<div class=${`field ${extra ?? ""}`}><label for=${id}>${label}</label>
    <input id=${id} class=${mono ? "input mono" : "input"} type=${type} step=${type === "datetime-local" ? "1" : undefined} value=${value} placeholder=${placeholder}
      autocomplete="off" spellcheck=${false} list=${list && `${id}-list`} aria-invalid=${invalid ? "true" : undefined}
      aria-describedby=${hint && `${id}-hint`} onInput=${(/** @type {any} */ event) => onInput(event.target.value)} />
    ${list && html`<datalist id=${`${id}-list`}>${list.map((one) => html`<option key=${one} value=${one} />`)}</datalist>`}
    ${hint && html`<span class="hint" id=${`${id}-hint`}>${hint}</span>`}</div>`;
}
