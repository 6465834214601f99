/** What-if: the last minutes replayed in the simulator, once as they were and once with other settings. */
import { api } from "../api.js";
import { count, duration, percent, plural } from "../format.js";
import { html, names, useState } from "../html.js";
import { ClassName, seriesClass } from "../parts/badge.js";
import { Card, Empty, Trouble } from "../parts/card.js";
import { Field, Select } from "../parts/choices.js";
import { Icon } from "../parts/icons.js";
import { Table } from "../parts/table.js";
import { gateIds, gateOf } from "../series.js";
import { may, state } from "../store.js";

/** @typedef {{name: string, word: string, format: (value: any) => string, less: boolean|null}} Measure */
const MEASURES = /** @type {Measure[]} */ ([
  { name: "wait.p50", word: "p50 wait", format: duration, less: true },
  { name: "wait.p95", word: "p95 wait", format: duration, less: true },
  { name: "wait.p99", word: "p99 wait", format: duration, less: true },
  { name: "completion.p95", word: "p95 to completion", format: duration, less: true },
  { name: "throughput", word: "done per second", format: (value) => (value === null ? "–" : value.toFixed(2)), less: false },
  { name: "lost", word: "lost", format: percent, less: true },
  { name: "missed", word: "deadlines missed", format: percent, less: true },
  { name: "preempted", word: "preempted", format: count, less: true },
  { name: "wasted", word: "work thrown away by preemption", format: duration, less: true },
  { name: "utilisation", word: "utilisation", format: percent, less: null },
]);

const MANIFOLD = 4; // from five times as much on, a multiple reads better than percents
const FEW = ["wait.p50", "wait.p99", "lost", "missed", "preempted"]; // of each class and tenant

/** A number if it reads as one, else true, false, null or text. @param {string} text */
function valueOf(text) {
  const trimmed = text.trim();
  try {
    return JSON.parse(trimmed);
  } catch {
    return trimmed;
  }
}

/** What is worth trying at a gate; others may be typed. @param {any} gate @returns {string[]} */
function settingsOf(gate) {
  const names = (gate?.classes ?? []).map((/** @type {any} */ one) => one.name);
  if (gate?.door.startsWith("pool/")) return ["capacity.slots", ...new Set(names.map((/** @type {string} */ one) => `policy.fair.weights.${one.split(" ")[0]}`))];
  if (gate?.door === "flows") return ["concurrency.max_concurrency", "scheduler.max_queue"];
  if (gate?.door === "streams") return ["concurrency", ...names.flatMap((/** @type {string} */ one) => [`topics.${one}.priority`, `topics.${one}.weight`, `topics.${one}.batch_size`])];
  if (gate?.door === "jobs") return ["planner", ...names.map((/** @type {string} */ one) => `executors.${one}`)];
  const each = ["reserved_per_slot", "reserved_floor", "queue_size", "queue_timeout"];
  return ["capacity", ...names.flatMap((/** @type {string} */ one) => each.map((setting) => `classes.${one}.${setting}`)), "lend_reservations"];
}

const last = { gate: "", minutes: "15", seed: "1", rows: [{ path: "", value: "" }], /** @type {any} */ answer: null, /** @type {any} */ asked: null };

export function WhatIf() {
  const [, draw] = useState(0);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (null));
  const set = (/** @type {any} */ change) => { Object.assign(last, change); draw((n) => n + 1); };
  const ids = gateIds();
  if (!ids.includes(last.gate)) last.gate = ids.includes(state.gate) ? state.gate : ids[0] ?? "";
  const changes = Object.fromEntries(last.rows.filter((row) => row.path.trim() && row.value.trim()).map((row) => [row.path.trim(), valueOf(row.value)]));
  const ready = Object.keys(changes).length > 0 && last.gate !== "" && Number(last.minutes) > 0 && !busy;
  const operator = may("operator");
  const run = async () => {
    if (!ready) return;
    setBusy(true);
    setError(null);
    try {
      const asked = { gate: last.gate, minutes: Number(last.minutes), seed: Number(last.seed) || 0, changes };
      const answer = await api("whatif", { method: "POST", body: asked });
      set({ answer, asked });
    } catch (caught) {
      setError(caught);
    }
    setBusy(false);
  };
  const change = (/** @type {number} */ at, /** @type {any} */ part) => set({ rows: last.rows.map((row, index) => (index === at ? { ...row, ...part } : row)) });
  const known = settingsOf(gateOf(last.gate));
  return html`
    <${Card} title="What if the settings had been different?" live=${false}>
      <form class="changes" novalidate onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); run(); }}>
        <p class="muted">Replays what this gate saw through the simulator twice: with its settings as they are, and with your changes. Nothing that runs is touched.</p>
        <div class="filters">
          <${Select} label="Gate" value=${last.gate} options=${ids.map((/** @type {string} */ one) => [one, one])} onChange=${(/** @type {string} */ id) => set({ gate: id })} />
          <${Field} label="Last minutes" type="number" value=${last.minutes} onInput=${(/** @type {string} */ value) => set({ minutes: value })} />
          <${Field} label="Seed" type="number" value=${last.seed} onInput=${(/** @type {string} */ value) => set({ seed: value })} />
        </div>
        ${last.rows.map((row, at) => html`<div class="change" key=${at}>
          <${Field} label=${at ? `Setting ${at + 1}` : "Setting"} mono value=${row.path} list=${known} placeholder=${known[0]} onInput=${(/** @type {string} */ path) => change(at, { path })} />
          <${Field} label="New value" mono value=${row.value} placeholder="0.2" onInput=${(/** @type {string} */ value) => change(at, { value })} />
          <button type="button" class="button" disabled=${last.rows.length < 2} onClick=${() => set({ rows: last.rows.filter((_, index) => index !== at) })}>Remove</button></div>`)}
        <div class="filters">
          <button type="button" class="button" onClick=${() => set({ rows: [...last.rows, { path: "", value: "" }] })}>Add a setting</button>
          <button type="submit" class="button primary" disabled=${!ready || !operator}>${busy ? "Simulating…" : "Run the simulation"}</button>
          ${!operator && html`<span class="hint">Your token may look; simulating needs an operator's.</span>`}
        </div>
      </form>
      ${error && html`<div class="space"><${Trouble} error=${error} /></div>`}
    </${Card}>
    <div aria-live="polite">${busy && html`<p class="unseen">Simulating</p>`}${last.answer && html`<${Comparison} answer=${last.answer} asked=${last.asked} />`}</div>
    ${!last.answer && !busy && html`<${Card} title="Comparison"><${Empty} title="Nothing compared yet.">Name a setting and a value, then run the simulation.</${Empty}></${Card}>`}`;
}

/** @param {{answer: any, asked: any}} props */
function Comparison({ answer, asked }) {
  const { before, after, observed } = answer;
  const dimensions = [["all", "Everything together"], ["class", "By class"], ["tenant", "By tenant"]];
  const what = Object.entries(asked.changes).map(([path, value]) => `${path} = ${JSON.stringify(value)}`).join(", ");
  return html`<div class="content-like">
    <p class="space">${asked.gate}, last ${asked.minutes} min, ${plural(answer.tickets, "ticket")}: <b class="mono">${what}</b>.${answer.note ? ` ${answer.note}` : ""}</p>
    ${dimensions.map(([key, title]) => {
      const groups = after.groups?.[key] ?? {};
      const measures = key === "all" ? MEASURES : MEASURES.filter((one) => FEW.includes(one.name));
      const rows = Object.keys({ ...(before.groups?.[key] ?? {}), ...groups }).flatMap((group) => rowsOf(group, before.groups?.[key]?.[group] ?? {}, groups[group] ?? {}, observed?.groups?.[key]?.[group] ?? {}, measures));
      return rows.length > 0 && html`<${Card} key=${key} title=${title} flush class="compare" live=${false}>
        <${Table} caption=${`Before and after, ${title}`} rows=${rows} rowKey=${(/** @type {any} */ row) => `${row.group}-${row.measure.name}`} columns=${[
          ...(key === "all" ? [] : [{ label: key === "class" ? "Class" : "Tenant", head: true, cell: (/** @type {any} */ row) => (row.first ? key === "class" ? html`<${ClassName} gate=${asked.gate} name=${row.group} />` : row.group || "(none)" : html`<span class="unseen">${row.group}</span>`) }]),
          { label: "Measure", head: key === "all", cell: (row) => row.measure.word },
          { label: "Observed", number: true, cell: (row) => row.measure.format(row.observed) },
          { label: "As it was, simulated", number: true, cell: (row) => row.measure.format(row.before) },
          { label: "With the change", number: true, cell: (row) => row.measure.format(row.after) },
          { label: "Side by side", class: "wide", cell: (row) => html`<${Pair} row=${row} />` },
          { label: "Difference", number: true, cell: (row) => html`<${Difference} row=${row} />` },
        ]} /></${Card}>`;
    })}
  </div>`;
}

function rowsOf(/** @type {string} */ group, /** @type {any} */ before, /** @type {any} */ after, /** @type {any} */ observed, /** @type {Measure[]} */ measures) {
  const found = measures.filter((one) => before[one.name] != null || after[one.name] != null);
  return found.map((measure, at) => ({ group, measure, first: at === 0, before: before[measure.name] ?? null, after: after[measure.name] ?? null, observed: observed[measure.name] ?? null }));
}

/** @param {{row: any}} props */
function Pair({ row }) {
  const most = Math.max(row.before ?? 0, row.after ?? 0, 1e-12);
  const bar = (/** @type {number|null} */ value, /** @type {number} */ color) => html`<div class=${names("track", seriesClass(color))}><span class="fill" style=${{ width: `${((value ?? 0) / most) * 100}%` }}></span></div>`;
  return html`<div class="pair" aria-hidden="true"><span class="small muted">was</span>${bar(row.before, 7)}<span class="small muted">new</span>${bar(row.after, 0)}</div>`;
}

/** By how much it differs: in percent, as a multiple once that says more, or plainly if it was nothing. @param {any} row @param {number} by */
function amount(row, by) {
  const sign = by > 0 ? "+" : "−";
  if (!row.before) return `${sign}${row.measure.format(Math.abs(by))}`;
  const part = Math.abs(by / row.before);
  return part < MANIFOLD ? `${sign}${count(Math.round(part * 100))} %` : `× ${count(Math.round(row.after / row.before))}`;
}

/** @param {{row: any}} props */
function Difference({ row }) {
  if (row.before === null || row.after === null) return "–";
  const by = row.after - row.before;
  if (Math.abs(by) <= 1e-9 + Math.abs(row.before) * 0.005) return html`<span class="muted">same</span>`;
  const part = amount(row, by);
  const icon = html`<${Icon} name=${by > 0 ? "up" : "down"} />`;
  if (row.measure.less === null) return html`<span>${icon} ${part}</span>`;
  const better = row.measure.less === by < 0;
  return html`<span class=${better ? "better" : "worse"}>${icon} ${part} <span class="small">${better ? "better" : "worse"}</span></span>`;
}
