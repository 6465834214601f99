/** The room of a gate: who holds it, what is kept for whom, what is free. */
import { count, plural } from "../format.js";
import { html, names } from "../html.js";
import { classNumber, seriesClass } from "./badge.js";

const MOST_CELLS = 96; // above that, cells say less than a strip

/** @param {any} gate @returns {{kind: "used"|"held"|"free", name: string, size: number}[]} */
export function parts(gate) {
  const { total, used, free } = gate.slots;
  const found = [];
  let counted = 0;
  for (const one of gate.classes) {
    const size = Math.min(one.running, Math.max(0, used - counted));
    if (size > 0) found.push({ kind: /** @type {const} */ ("used"), name: one.name, size });
    counted += size;
  }
  if (used > counted) found.push({ kind: /** @type {const} */ ("used"), name: "", size: used - counted });
  let left = total === null ? 0 : Math.max(0, free ?? total - used);
  for (const one of gate.reserved ?? []) {
    const size = Math.min(one.kept ?? Math.max(0, one.held - (one.used ?? 0)), left);
    if (size > 0) found.push({ kind: /** @type {const} */ ("held"), name: one.class, size });
    left -= size;
  }
  if (left > 0) found.push({ kind: /** @type {const} */ ("free"), name: "", size: left });
  return found;
}

const style = (/** @type {any} */ gate, /** @type {any} */ part) => names(part.kind, part.name && seriesClass(classNumber(gate.id, part.name)));

/** @param {{gate: any}} props */
export function SlotStrip({ gate }) {
  const all = parts(gate);
  const sum = Math.max(1e-9, all.reduce((n, one) => n + one.size, 0));
  return html`<div class="strip" role="img" aria-label=${sentence(gate)}>
    ${all.filter((one) => one.kind !== "free").map((one) => html`<span key=${one.kind + one.name}
      class=${names("part eased", style(gate, one))} style=${{ width: `${(one.size / sum) * 100}%` }}></span>`)}
  </div>`;
}

/** @param {any} gate */
export function sentence(gate) {
  const { total, used } = gate.slots;
  const kept = (gate.reserved ?? []).map((/** @type {any} */ one) => `${one.held} kept for ${one.class}`).join(", ");
  return `${count(used)} ${total === null ? "in use" : `of ${plural(total, "slot")} in use`}${kept ? `; ${kept}` : ""}`;
}

/** @param {{gate: any}} props */
export function Slots({ gate }) {
  const { total } = gate.slots;
  const all = parts(gate);
  const whole = total !== null && Number.isInteger(total) && total <= MOST_CELLS && all.every((one) => Number.isInteger(one.size));
  return html`<div>
    ${whole
      ? html`<div class="slots" role="img" aria-label=${sentence(gate)}>${all.flatMap((one) => Array.from({ length: one.size }, (_, at) =>
          html`<span key=${`${one.kind}${one.name}${at}`} class=${names("slot", style(gate, one))}></span>`))}</div>`
      : html`<${SlotStrip} gate=${gate} />`}
    <ul class="slot-key">
      ${all.map((one) => html`<li key=${one.kind + one.name}><span class=${names("slot", style(gate, one))} aria-hidden="true"></span>
        ${one.kind === "used" ? `${one.name || "in use"}: ${count(one.size)}` : one.kind === "held" ? `kept for ${one.name}: ${count(one.size)}` : `free: ${count(one.size)}`}</li>`)}
      ${total === null && html`<li>no fixed number of slots</li>`}
    </ul></div>`;
}
