/** A titled piece of a view, and what stands in it when there is nothing to show. */
import { html, names, useId } from "../html.js";

/** @param {{title: string, tools?: any, note?: any, flush?: boolean, live?: boolean, children?: any, class?: string}} props */
export function Card({ title, tools, note, flush, live = true, children, class: extra }) {
  const id = useId();
  return html`<section class=${names("card", live && "live-figures", extra)} aria-labelledby=${id}>
    <header><h2 id=${id}>${title}</h2>${note && html`<span class="muted small">${note}</span>`}
      ${tools && html`<div class="tools">${tools}</div>`}</header>
    <div class=${names("body", flush && "flush")}>${children}</div>
  </section>`;
}

/** @param {{title: string, children?: any}} props */
export const Empty = ({ title, children }) => html`<div class="empty"><strong>${title}</strong>${children}</div>`;

/** @param {{error: any, retry?: () => void}} props */
export const Trouble = ({ error, retry }) => html`<div class="trouble" role="alert">
  <p>${error.message}</p>${retry && html`<button type="button" class="button" onClick=${retry}>Try again</button>`}</div>`;

export const Loading = () => html`<p class="skeleton" role="status">Loading…</p>`;

/** @param {{items: {label: string, value: any, of?: any, tone?: string}[], label: string}} props */
export const Kpis = ({ items, label }) => html`<dl class="kpis live-figures" aria-label=${label}>
  ${items.map((one) => html`<div class="kpi" key=${one.label}><dt>${one.label}</dt>
    <dd class=${one.tone ? `tone-${one.tone}` : ""}>${one.value}${one.of !== undefined && html` <small>${one.of}</small>`}</dd></div>`)}
</dl>`;

/** @param {{items: [string, any][]}} props */
export const Facts = ({ items }) => html`<dl class="facts">
  ${items.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
