/** States and classes as a word with a shape and a colour. */
import { html, names } from "../html.js";
import { latest } from "../store.js";
import { SERIES } from "../theme.js";
import { Icon } from "./icons.js";

/** @type {Record<string, [string, any]>} word → tone, icon; the words of jobs, runs, doors and decisions alike */
const LOOKS = {
  completed: ["good", "done"], done: ["good", "done"], running: ["info", "running"], active: ["info", "running"],
  started: ["info", "running"], created: ["idle", "ring"], waiting: ["idle", "waiting"], ready: ["idle", "waiting"],
  retry: ["warn", "again"], promoted: ["warn", "up"], failed: ["bad", "failed"], expired: ["bad", "failed"],
  refused: ["bad", "failed"], evicted: ["bad", "down"], cancelled: ["pause", "skipped"], cancelling: ["pause", "skipped"],
  withdrawn: ["pause", "skipped"], moved: ["pause", "again"], skipped: ["pause", "skipped"], suspended: ["pause", "paused"], paused: ["pause", "paused"],
  starting: ["warn", "waiting"], withheld: ["warn", "paused"], draining: ["warn", "down"], silent: ["bad", "failed"], degraded: ["bad", "failed"], unhealthy: ["bad", "failed"], ejected: ["bad", "failed"], healthy: ["good", "done"], disconnected: ["bad", "failed"], stopped: ["idle", "ring"],
};

/** @param {string} word @returns {[string, any]} */
export const look = (word) => LOOKS[word] ?? ["idle", "dot"];

/** @param {{word: string, title?: string}} props */
export function Badge({ word, title }) {
  const [tone, icon] = look(word);
  return html`<span class=${`badge tone-${tone}`} title=${title}><${Icon} name=${icon} />${word}</span>`;
}

/** @type {Map<string, Map<string, number>>} */
const numbered = new Map();

/** A class of a gate has one colour in all views, and keeps it; the highest rank has the first. @param {string} gate @param {string} name */
export function classNumber(gate, name) {
  let own = numbered.get(gate);
  if (!own) numbered.set(gate, (own = new Map()));
  if (!own.has(name)) {
    const seen = latest()?.gates.find((/** @type {any} */ one) => one.id === gate)?.classes ?? [];
    for (const one of [...seen, { name }]) if (!own.has(one.name)) own.set(one.name, own.size);
  }
  return own.get(name) ?? 0;
}

export const seriesClass = (/** @type {number} */ n) => `series-${n % SERIES}`;

/** @param {{gate: string, name: string|null}} props */
export const ClassName = ({ gate, name }) => name === null || name === undefined || name === ""
  ? html`<span class="muted">–</span>`
  : html`<span class=${names("class-name", seriesClass(classNumber(gate, name)))}>${name}</span>`;
