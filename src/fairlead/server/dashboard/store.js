/** What the page knows. One object, one way to say that it changed; views read it and hold nothing that others need. */
import { useEffect, useState } from "./html.js";

const KEPT_SECONDS = 15 * 60;
const KEPT_DECISIONS = 2000;

export const state = {
  /** @type {any} */ overview: null,
  /** @type {any[]} oldest first */ snapshots: [],
  /** @type {any[]} newest first, numbered by the server */ decisions: [],
  /** of those since the first one known, how many the page was never sent */ decisionsMissed: 0,
  /** @type {"connecting"|"live"|"lost"} */ connection: "connecting",
  /** @type {number|null} ms of the page's clock */ retryAt: null,
  needToken: false,
  tokenWrong: false,
  /** seconds by which the server's clock is ahead of the page's */ ahead: 0,
  /** @type {string|null} the gate looked at, across views */ gate: null,
  theme: "system",
  /** grows when colours change, so that canvases are drawn anew */ painted: 0,
  /** @type {{id: number, kind: string, text: string}[]} */ notices: [],
};

/** @type {Set<() => void>} */
const listeners = new Set();
let asked = false;

/** Have the page drawn anew, at most once a frame. */
export function changed() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    for (const listener of [...listeners]) listener();
  });
}

export function useStore() {
  const [, draw] = useState(0);
  useEffect(() => {
    const listener = () => draw((n) => n + 1);
    listeners.add(listener);
    return () => { listeners.delete(listener); };
  }, []);
  return state;
}

/** The server's clock in seconds, as well as the page can know it. */
export const serverNow = () => Date.now() / 1000 + state.ahead;

export const latest = () => state.snapshots[state.snapshots.length - 1] ?? null;

/** @param {any} snapshot @returns {boolean} whether it was new */
export function addSnapshot(snapshot) {
  const last = latest();
  if (last && snapshot.seq <= last.seq) return false;
  state.snapshots.push(snapshot);
  const oldest = snapshot.t - KEPT_SECONDS;
  let gone = 0;
  while (gone < state.snapshots.length && state.snapshots[gone].t < oldest) gone += 1;
  if (gone) state.snapshots.splice(0, gone);
  return true;
}

/** What is known already may come again, at the seam of the list and the stream. @param {any[]} items oldest first */
export function addDecisions(items) {
  const newest = state.decisions[0]?.number ?? 0;
  const fresh = items.filter((item) => item.number > newest).reverse();
  // Numbers count every decision, so what is missing between them was not sent, for whatever reason.
  if (newest && fresh.length) state.decisionsMissed += fresh[0].number - newest - fresh.length;
  state.decisions = [...fresh, ...state.decisions].slice(0, KEPT_DECISIONS);
}

let noticed = 0;

/** Say something at the foot of the page for a while. @param {"good"|"bad"} kind @param {string} text */
export function notify(kind, text) {
  const notice = { id: (noticed += 1), kind, text };
  state.notices = [...state.notices, notice].slice(-3);
  changed();
  setTimeout(() => dismiss(notice.id), kind === "bad" ? 12000 : 6000);
}

/** @param {number} id */
export function dismiss(id) {
  state.notices = state.notices.filter((one) => one.id !== id);
  changed();
}

const RANKS = ["viewer", "operator", "admin"];

/** Whether the role of this page's token is at least that. @param {"viewer"|"operator"|"admin"} role */
export const may = (role) => RANKS.indexOf(state.overview?.role ?? "viewer") >= RANKS.indexOf(role);
