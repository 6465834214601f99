/**
 * A table whose rows can be walked with the arrow keys, Home and End; Enter opens a row that opens.
 * On a phone each row becomes a small card; the explicit roles keep it a table for screen readers.
 */
import { html, names, useRef, useState } from "../html.js";
import { Empty } from "./card.js";

/**
 * @typedef {{label: string, cell: (row: any) => any, number?: boolean, head?: boolean, class?: string}} Column
 * @param {{caption: string, columns: Column[], rows: any[], rowKey: (row: any, at: number) => any, onOpen?: (row: any) => void,
 *   chosen?: any, empty?: any, class?: string}} props
 */
export function Table({ caption, columns, rows, rowKey, onOpen, chosen, empty, class: extra }) {
  const [current, setCurrent] = useState(0);
  const body = useRef(/** @type {any} */ (null));
  if (!rows.length) return empty ?? html`<${Empty} title="Nothing here" />`;
  const at = Math.min(current, rows.length - 1);

  const go = (/** @type {number} */ to) => {
    const next = Math.max(0, Math.min(rows.length - 1, to));
    setCurrent(next);
    body.current?.children[next]?.focus();
  };
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    // Rows may have moved since the focus came: the place is that of the focused row now.
    const focused = [...body.current.children].indexOf(event.target);
    if (focused < 0) return;
    const moves = { ArrowDown: focused + 1, ArrowUp: focused - 1, PageDown: focused + 10, PageUp: focused - 10, Home: 0, End: rows.length - 1 };
    const to = /** @type {Record<string, number>} */ (moves)[event.key];
    if (to !== undefined) {
      event.preventDefault();
      go(to);
    } else if (onOpen && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault();
      onOpen(rows[focused]);
    }
  };
  const opened = (/** @type {MouseEvent} */ event, /** @type {any} */ row) => {
    if (!(/** @type {any} */ (event.target).closest("a, button, input"))) onOpen?.(row);
  };

  return html`<div class="table-box"><table class=${names("stacked", extra)} role="table">
    <caption class="unseen">${caption}</caption>
    <thead role="rowgroup"><tr role="row">${columns.map((one) => html`<th key=${one.label} role="columnheader" scope="col" class=${names(one.number && "number")}>${one.label}</th>`)}</tr></thead>
    <tbody ref=${body} onKeyDown=${onKeyDown} role="rowgroup">${rows.map((row, index) => {
      const key = rowKey(row, index);
      return html`<tr key=${key} role="row" tabindex=${index === at ? 0 : -1} onFocus=${() => index !== current && setCurrent(index)}
        class=${names(onOpen && "opens", chosen !== undefined && chosen === key && "chosen")}
        onClick=${onOpen && ((/** @type {any} */ event) => opened(event, row))}>
        ${columns.map((one) => one.head
          ? html`<th key=${one.label} scope="row" role="rowheader" class=${one.class}>${one.cell(row)}</th>`
          : html`<td key=${one.label} role="cell" data-label=${one.label} class=${names(one.number && "number", one.class)}>${one.cell(row)}</td>`)}
      </tr>`;
    })}</tbody>
  </table></div>`;
}
