/** Classes and tenants: how long each class waits over time, and who gets how much of the room. */
import { api } from "../api.js";
import { count, duration, percent, rate } from "../format.js";
import { html, useState } from "../html.js";
import { Card, Empty, Facts, Loading } from "../parts/card.js";
import { Chart } from "../parts/chart.js";
import { Field, Segmented, Select } from "../parts/choices.js";
import { Confirm } from "../parts/dialog.js";
import { Mark, overrideOf } from "../parts/overrides.js";
import { Table } from "../parts/table.js";
import { go } from "../route.js";
import { classLines, gateIds, gateOf } from "../series.js";
import { latest, may, notify, state } from "../store.js";
import { ClassTable } from "./now.js";

/** @type {Record<string, {word: string, pick: (one: any) => number|null, format: (value: any) => string}>} */
const MEASURES = {
  p50: { word: "p50", pick: (one) => one.waits?.p50, format: duration },
  p95: { word: "p95", pick: (one) => one.waits?.p95, format: duration },
  p99: { word: "p99", pick: (one) => one.waits?.p99, format: duration },
  waiting: { word: "waiting", pick: (one) => one.waiting, format: count },
  running: { word: "running", pick: (one) => one.running, format: count },
  started: { word: "started/s", pick: (one) => one.admitted_per_s, format: rate },
};
const SHARED = /** @type {[string, string][]} */ ([["10", "10 s"], ["60", "1 min"], ["300", "5 min"]]);
const SPANS = /** @type {[string, string][]} */ ([["1", "1 min"], ["5", "5 min"], ["15", "15 min"]]);

const WORDS = /** @type {Record<string, string>} */ ({ above: "above fair", below: "below fair", fair: "fair" });

/** @param {{row: any, seconds: number, most: number}} props */
function Share({ row, seconds, most }) {
  const { share, fair_share: fair } = windowOf(row, seconds);
  const scale = (/** @type {number} */ value) => `${Math.min(100, (value / most) * 100)}%`;
  const word = WORDS[row.verdict] ?? "not judged yet";
  return html`<div class="share">
    <div class="track" role="img" aria-label=${`${percent(share)} of the room; fair would be ${percent(fair)}`}>
      <span class="fill" style=${{ width: scale(share ?? 0) }}></span>
      <span class="mark" style=${{ left: scale(fair ?? 0) }}></span></div>
    <span class="small muted">${word}</span></div>`;
}

/** What a tenant had in a window, and what would have been fair. @param {any} row @param {number} seconds */
const windowOf = (row, seconds) => row.windows?.find((/** @type {any} */ one) => one.seconds === seconds) ?? row;

/** The parts of a gate in which tenants have weights. @param {any} gate @returns {string[]} */
const weighable = (gate) => (gate.adjustable ?? []).filter((/** @type {string} */ one) => one.endsWith(".set_weight")).map((/** @type {string} */ one) => one.split(".")[0]);

/** @param {{gate: any, tenant: any, onClose: () => void}} props */
function Weight({ gate, tenant, onClose }) {
  const [weight, setWeight] = useState(String(tenant.weight ?? 1));
  const wanted = Number(weight);
  const ready = weight.trim() !== "" && wanted > 0;
  const act = async () => {
    for (const part of weighable(gate)) {
      await api(`gates/${encodeURIComponent(gate.id)}/adjust`, { method: "POST", body: { part, verb: "set_weight", args: [tenant.name, wanted] } });
    }
    notify("good", `${tenant.name} now weighs ${wanted}.`);
  };
  return html`<${Confirm} title=${`Weight of ${tenant.name}`} verb="Set the weight" act=${act} onClose=${onClose} ready=${ready}>
    <p>A tenant of weight 2 gets twice the room of one of weight 1 while both wait. Holds until it is reset (Config, Overrides), the configuration is applied again, or the server restarts.</p>
    <${Field} label="Weight" type="number" value=${weight} onInput=${setWeight} invalid=${!ready} hint="A number above 0" />
  </${Confirm}>`;
}

/** @param {{query: URLSearchParams}} props */
export function Classes({ query }) {
  const [measure, setMeasure] = useState("p95");
  const [span, setSpan] = useState("15");
  const [shared, setShared] = useState("60");
  const [weighing, setWeighing] = useState(/** @type {any} */ (null));
  const snapshot = latest();
  if (!snapshot) return html`<${Loading} />`;
  const gate = gateOf(query.get("gate") ?? "") ?? gateOf(state.gate ?? "") ?? snapshot.gates[0];
  if (!gate) return html`<${Card} title="Classes"><${Empty} title="This server hosts no gate." /></${Card}>`;
  state.gate = gate.id;
  const { pick, format, word } = MEASURES[measure];
  const lines = classLines(gate.id, Number(span), pick);
  const tenants = gate.tenants ?? [];
  const seconds = Number(shared);
  const most = Math.max(0.05, ...tenants.map((/** @type {any} */ one) => Math.max(windowOf(one, seconds).share ?? 0, windowOf(one, seconds).fair_share ?? 0))) * 1.1;
  const ids = gateIds().map((/** @type {string} */ one) => [one, one]);
  return html`
    <div class="filters">
      <${Select} label="Gate" value=${gate.id} options=${ids} onChange=${(/** @type {string} */ id) => go("classes", { gate: id })} />
      <div class="field"><span class="label">What</span><${Segmented} label="What to draw" options=${Object.entries(MEASURES).map(([key, one]) => [key, one.word])} value=${measure} onChange=${setMeasure} /></div>
      <div class="field"><span class="label">Span</span><${Segmented} label="Span" options=${SPANS} value=${span} onChange=${setSpan} /></div>
    </div>
    <${Card} title=${["p50", "p95", "p99"].includes(measure) ? `Wait until started, ${word}` : `By class: ${word}`} note=${`last ${span} min`}>
      <${Chart} key=${`${gate.id}-${measure}`} ...${lines} format=${format} height=${260} label=${`${word} by class at ${gate.id}, last ${span} minutes`} />
    </${Card}>
    <${Card} title="Classes" note="highest rank first; waits of the last 10 s" flush><${ClassTable} gate=${gate} /></${Card}>
    <${Card} title="Tenants: share against fair share" note=${tenants.length ? "the bar is what a tenant had, the mark what would have been fair (max-min by weight); the word judges the last minute" : ""}
      tools=${html`<${Segmented} label="Window of the shares" options=${SHARED} value=${shared} onChange=${setShared} />`} flush>
      <${Table} caption=${`Tenants of ${gate.id}`} rows=${tenants} rowKey=${(/** @type {any} */ row) => row.name}
        empty=${html`<${Empty} title="No tenants here.">Fairness among tenants shows once requests carry a tenant.</${Empty}>`} columns=${[
          { label: "Tenant", head: true, cell: (row) => row.name },
          { label: "Share of the room", class: "wide", cell: (row) => html`<${Share} row=${row} seconds=${seconds} most=${most} />` },
          { label: "Share", number: true, cell: (row) => percent(windowOf(row, seconds).share) },
          { label: "Fair", number: true, cell: (row) => percent(windowOf(row, seconds).fair_share) },
          { label: "Weight", number: true, cell: (row) => html`<${Mark} override=${overrideOf(gate, `:set_weight:${row.name}`)} /> ${may("operator") && weighable(gate).length
            ? html`<button type="button" class="button plain small-button" aria-label=${`Weight of ${row.name}: ${row.weight}. Change`} onClick=${() => setWeighing(row)}>${count(row.weight)} …</button>` : count(row.weight)}` },
          { label: "Waiting now", number: true, cell: (row) => count(row.waiting) },
          { label: "Running now", number: true, cell: (row) => count(row.running) },
        ]} />
    </${Card}>
    <${Card} title="Since the start"><${Facts} items=${Object.entries(gate.totals ?? {}).map(([name, value]) => [name, count(/** @type {number} */ (value))])} /></${Card}>
    ${weighing && html`<${Weight} gate=${gate} tenant=${weighing} onClose=${() => setWeighing(null)} />`}`;
}
