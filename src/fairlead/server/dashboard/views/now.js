/** Now: is there room, who waits, and why. */
import { api, usePoll } from "../api.js";
import { clock, count, duration, plural, rate } from "../format.js";
import { html, useState } from "../html.js";
import { Badge, ClassName } from "../parts/badge.js";
import { Card, Empty, Kpis, Loading, Trouble } from "../parts/card.js";
import { Chart, Sparkline } from "../parts/chart.js";
import { Field, Segmented } from "../parts/choices.js";
import { Confirm } from "../parts/dialog.js";
import { Mark, overrideOf } from "../parts/overrides.js";
import { SlotStrip, Slots } from "../parts/slots.js";
import { Table } from "../parts/table.js";
import { go } from "../route.js";
import { classLines, gateOf, oneLine } from "../series.js";
import { latest, may, notify, state } from "../store.js";

const sum = (/** @type {any[]} */ items, /** @type {(one: any) => number} */ pick) => items.reduce((n, one) => n + (pick(one) ?? 0), 0);

function figures(/** @type {any} */ snapshot) {
  const { gates, jobs } = snapshot;
  // A slot of a pool is counted once, where it is used: the pool's own gate has the same tickets again.
  const own = gates.filter((/** @type {any} */ one) => !one.door.startsWith("pool/"));
  const classes = own.flatMap((/** @type {any} */ one) => one.classes);
  const bounded = own.filter((/** @type {any} */ one) => one.slots.total !== null);
  const worst = classes.reduce((/** @type {any} */ most, /** @type {any} */ one) => ((one.waits?.p99 ?? -1) > (most?.waits?.p99 ?? -1) ? one : most), null);
  const refused = sum(classes, (one) => one.refused_per_s);
  return [
    { label: "slots in use", value: count(sum(bounded, (one) => one.slots.used)), of: `of ${count(sum(bounded, (one) => one.slots.total))}` },
    { label: "waiting", value: count(sum(classes, (one) => one.waiting)) },
    { label: "started per second", value: rate(sum(classes, (one) => one.admitted_per_s)) },
    { label: "refused per second", value: rate(refused), tone: refused > 0 ? "bad" : undefined },
    { label: worst?.waits?.p99 != null ? `longest p99 wait: ${worst.name}` : "longest p99 wait", value: duration(worst?.waits?.p99) },
    ...(jobs ? [{ label: "jobs running", value: count(jobs.running), of: jobs.leading ? `${count(jobs.ready)} ready` : "another process leads" }] : []),
  ];
}

/** @param {{gate: any, chosen: boolean}} props */
function GateButton({ gate, chosen }) {
  const waiting = sum(gate.classes, (one) => one.waiting);
  const line = oneLine(5, (snapshot) => sum(gateOf(gate.id, snapshot)?.classes ?? [], (one) => one.waiting));
  return html`<button type="button" class="gate live-figures" aria-pressed=${chosen ? "true" : "false"} onClick=${() => go("now", { gate: gate.id })}>
    <span class="name"><span>${gate.id}</span><span class="tag">${gate.door}</span></span>
    <${SlotStrip} gate=${gate} />
    ${gate.slots.over && html`<span class="tone-bad">${gate.slots.over}</span>`}
    ${gate.slots.idle && html`<span class="small muted">${gate.slots.idle}</span>`}
    ${gate.degraded && html`<span class="tone-bad strong">degraded: ${gate.degraded}</span>`}
    <span class="figures"><span><b>${count(gate.slots.used)}</b> ${gate.slots.total === null ? "in use" : `of ${count(gate.slots.total)}`}</span>
      <span><b>${count(waiting)}</b> waiting</span><span><b>${rate(sum(gate.classes, (one) => one.admitted_per_s))}</b>/s</span></span>
    <${Sparkline} values=${line} label=${`Waiting over the last 5 minutes, now ${waiting}`} />
  </button>`;
}

/** The part of a gate that can be resized, as part.verb. @param {any} gate */
const resizable = (gate) => (gate.adjustable ?? []).find((/** @type {string} */ one) => one.endsWith(".resize"));

/** @param {{gate: any, onClose: () => void}} props */
function Resize({ gate, onClose }) {
  const follows = gate.door === "gateway"; // its fleet says how many there are; what is set here is a ceiling
  const [slots, setSlots] = useState(String(gate.slots.total));
  const wanted = follows && slots.trim() === "" ? null : Number(slots);
  const ready = wanted === null || (slots.trim() !== "" && Number.isInteger(wanted) && wanted >= 0);
  const act = async () => {
    const [part] = resizable(gate).split(".");
    await api(`gates/${encodeURIComponent(gate.id)}/adjust`, { method: "POST", body: { part, verb: "resize", args: [wanted] } });
    const most = follows ? "at most " : "";
    notify("good", wanted === null ? `${gate.id} has what its fleet has.` : `${gate.id} now has ${most}${plural(wanted, "slot")}.`);
  };
  return html`<${Confirm} title=${`Resize ${gate.id}`} verb="Resize" act=${act} onClose=${onClose} ready=${ready}>
    <p>${follows ? "A ceiling on what the fleet has: it holds until it is taken away or the server restarts." : "Holds until the configuration is applied again or the server restarts."} What runs keeps its room; fewer slots take effect as it ends.</p>
    <${Field} label="Slots" type="number" value=${slots} onInput=${setSlots} invalid=${!ready} hint=${`${count(gate.slots.used)} in use now${follows ? "; empty: as many as the fleet has" : ""}`} />
  </${Confirm}>`;
}

/** @param {{gate: any}} props */
function Waiting({ gate }) {
  const { data, error, loading, reload } = usePoll(`gates/${encodeURIComponent(gate.id)}/waiting?limit=50`, 2000);
  const waiting = sum(gate.classes, (one) => one.waiting);
  const [all, setAll] = useState(false);
  const items = (data?.items ?? []).slice(0, all ? undefined : FEW);
  const shown = data ? (data.total > items.length ? `the first ${items.length} of ${count(data.total)}` : count(data.total)) : count(waiting);
  return html`<${Card} title="Who waits, and why" note=${shown} flush>
    ${error && html`<div class="body"><${Trouble} error=${error} retry=${reload} /></div>`}
    ${loading ? html`<${Loading} />` : html`<${Table} caption=${`Who waits at ${gate.id}, and why`} rows=${items} rowKey=${(/** @type {any} */ row, /** @type {number} */ at) => `${row.key}-${at}`}
      empty=${html`<${Empty} title="Nobody waits here.">${whatComes(gate)}</${Empty}>`}
      columns=${[
        { label: "Key", head: true, class: "mono key", cell: (row) => html`<span title=${row.key}>${row.key}</span>` },
        { label: "Class", cell: (row) => html`<${ClassName} gate=${gate.id} name=${row.class} />` },
        { label: "Tenant", cell: (row) => row.tenant || "–" },
        { label: "Workload", cell: (row) => row.workload || "–" },
        { label: "Cost", number: true, cell: (row) => count(row.cost) },
        { label: "Waited", number: true, cell: (row) => duration(row.waited) },
        { label: "Why", class: "why", cell: (row) => row.why },
      ]} />`}
    ${(data?.items.length ?? 0) > FEW && html`<div class="pages"><button type="button" class="button" aria-expanded=${all ? "true" : "false"} onClick=${() => setAll(!all)}>${all ? "Show fewer" : `Show ${data.items.length}`}</button></div>`}
  </${Card}>`;
}

/** What becomes of a request that comes now. @param {any} gate */
const whatComes = (gate) => (gate.degraded ? `Whatever comes now is refused: ${gate.degraded}.` : gate.slots.free === 0 ? "Whatever comes now waits until a slot is free." : "There is room.");

/** @param {{gate: any}} props */
function Backends({ gate }) {
  const up = gate.backends.filter((/** @type {any} */ one) => one.state === "healthy").length;
  return html`<${Card} title="Backends" note=${`${count(up)} of ${count(gate.backends.length)} up`} flush>
    <${Table} caption=${`Backends of ${gate.id}`} rows=${gate.backends} rowKey=${(/** @type {any} */ row) => row.url} columns=${[
      { label: "Address", head: true, class: "mono key", cell: (row) => html`<span title=${row.url}>${row.url}</span>` },
      { label: "State", cell: (row) => html`<${Badge} word=${row.state} />` },
      { label: "Slots in use", number: true, cell: (row) => `${count(row.in_flight)} of ${count(row.capacity)}` },
      { label: "Tries", number: true, cell: (row) => count(row.tries) },
      { label: "Errors", number: true, cell: (row) => (row.errors > 0 ? html`<span class="tone-bad strong">${count(row.errors)}</span>` : "0") },
      { label: "Last failure", class: "why", cell: (row) => (row.last_failure ? `${clock(row.last_failure.at)}: ${row.last_failure.what}` : "–") },
    ]} />
  </${Card}>`;
}

const FEW = 10;
const PERCENTILES = /** @type {[string, string][]} */ ([["p50", "p50"], ["p95", "p95"], ["p99", "p99"]]);

/** @param {{query: URLSearchParams}} props */
export function Now({ query }) {
  const [percentile, setPercentile] = useState("p95");
  const [resizing, setResizing] = useState(false);
  const snapshot = latest();
  if (!snapshot) return html`<${Loading} />`;
  if (!snapshot.gates.length) {
    return html`<${Card} title="No gates yet"><${Empty} title="This server hosts no gate.">Name a door in the configuration: gateway, flows, jobs or streams.</${Empty}></${Card}>`;
  }
  const gate = gateOf(query.get("gate") ?? "") ?? gateOf(state.gate ?? "") ?? snapshot.gates[0];
  state.gate = gate.id;
  const lines = classLines(gate.id, 5, (one) => one.waits?.[percentile] ?? null);
  return html`
    <${Kpis} label="Of all gates together" items=${figures(snapshot)} />
    ${snapshot.jobs && snapshot.jobs.leading === false && html`<p class="banner warn" role="status"><strong>Jobs:</strong> ${snapshot.jobs.reason}</p>`}
    <div class="gates" role="group" aria-label="Gates">${snapshot.gates.map((/** @type {any} */ one) => html`<${GateButton} key=${one.id} gate=${one} chosen=${one.id === gate.id} />`)}</div>
    <div class="two">
      <${Card} title="Wait until started, by class" note="last 5 minutes" tools=${html`<${Segmented} label="Percentile" options=${PERCENTILES} value=${percentile} onChange=${setPercentile} />`}>
        <${Chart} key=${gate.id} ...${lines} format=${duration} label=${`Waits at ${gate.id}, ${percentile}, last 5 minutes`} />
      </${Card}>
      <${Card} title="Slots and reservations" tools=${may("operator") && gate.slots.total !== null && resizable(gate) && html`<button type="button" class="button" onClick=${() => setResizing(true)}>Resize…</button>`}>
        <${Slots} gate=${gate} />
        ${overrideOf(gate, ":resize") && html`<p class="space">${gate.door === "gateway" ? "A ceiling of " : "The number of slots: "}${count(overrideOf(gate, ":resize").value)}, <${Mark} override=${overrideOf(gate, ":resize")} /></p>`}
        ${gate.slots.over && html`<p class="space tone-bad">${gate.slots.over}.</p>`}
        ${gate.slots.idle && html`<p class="space" data-idle>Slots are free while work waits: ${gate.slots.idle}.</p>`}
        ${gate.reserved?.length > 0 && html`<div class="space"><${Table} caption="Reservations" rows=${gate.reserved} rowKey=${(/** @type {any} */ row) => row.class} class="inset" columns=${[
          { label: "Kept for", head: true, cell: (row) => html`<${ClassName} gate=${gate.id} name=${row.class} />` },
          { label: "Slots kept", number: true, cell: (row) => count(row.held) },
          { label: "Of these in use", number: true, cell: (row) => count(row.used) },
          { label: "Free and kept now", number: true, cell: (row) => (row.kept ? `${count(row.kept)}${row.lent_in === null ? "" : `, for ${duration(row.lent_in)}`}` : "0") },
        ]} /></div>`}
      </${Card}>
    </div>
    <${Card} title="Queues" note=${gate.id} flush>
      <${ClassTable} gate=${gate} />
    </${Card}>
    ${gate.backends?.length > 0 && html`<${Backends} gate=${gate} />`}
    <${Waiting} key=${gate.id} gate=${gate} />
    ${resizing && html`<${Resize} gate=${gate} onClose=${() => setResizing(false)} />`}`;
}

/** @param {{gate: any}} props */
export function ClassTable({ gate }) {
  return html`<${Table} caption=${`Classes of ${gate.id}`} rows=${gate.classes} rowKey=${(/** @type {any} */ row) => row.name}
    empty=${html`<${Empty} title="No class was seen yet." />`} columns=${[
      { label: "Class", head: true, cell: (row) => html`<${ClassName} gate=${gate.id} name=${row.name} />` },
      { label: "Waiting", number: true, cell: (row) => count(row.waiting) },
      { label: "Running", number: true, cell: (row) => count(row.running) },
      { label: "p50", number: true, cell: (row) => duration(row.waits?.p50) },
      { label: "p95", number: true, cell: (row) => duration(row.waits?.p95) },
      { label: "p99", number: true, cell: (row) => duration(row.waits?.p99) },
      { label: "Started/s", number: true, cell: (row) => rate(row.admitted_per_s) },
      { label: "Refused/s", number: true, cell: (row) => (row.refused_per_s > 0 ? html`<span class="tone-bad strong">${rate(row.refused_per_s)}</span>` : "0") },
      { label: "Oldest waits", number: true, cell: (row) => (row.waiting ? duration(row.oldest_wait) : "–") },
    ]} />`;
}

