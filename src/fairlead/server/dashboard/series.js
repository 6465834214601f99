/** Lines for charts out of the kept snapshots. */
import { classNumber } from "./parts/badge.js";
import { latest, state } from "./store.js";

/** @param {string} id */
export const gateOf = (id, snapshot = latest()) => snapshot?.gates.find((/** @type {any} */ one) => one.id === id) ?? null;

export const gateIds = () => (latest()?.gates ?? []).map((/** @type {any} */ one) => one.id);

/** @param {number} minutes */
export function recent(minutes) {
  const last = latest();
  if (!last) return [];
  const from = last.t - minutes * 60;
  return state.snapshots.filter((one) => one.t >= from);
}

/**
 * One line per class of a gate. @param {string} id @param {number} minutes @param {(one: any) => number|null} pick
 */
export function classLines(id, minutes, pick) {
  const snapshots = recent(minutes);
  /** @type {Map<string, (number|null)[]>} */ const lines = new Map();
  snapshots.forEach((snapshot, at) => {
    for (const one of gateOf(id, snapshot)?.classes ?? []) {
      let line = lines.get(one.name);
      if (!line) lines.set(one.name, (line = new Array(snapshots.length).fill(null)));
      line[at] = pick(one) ?? null;
    }
  });
  return {
    times: snapshots.map((one) => one.t),
    series: [...lines].map(([label, values]) => ({ label, color: classNumber(id, label), values })).sort((a, b) => a.color - b.color),
  };
}

/** One line. @param {number} minutes @param {(snapshot: any) => number|null} pick */
export const oneLine = (minutes, pick) => recent(minutes).map(pick);
