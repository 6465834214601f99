/**
 * The stream of events, read with fetch() because EventSource cannot send a token.
 * When it breaks, the page says so, tries again with growing pauses, and asks for what it missed (Last-Event-ID).
 */
import { api, askForToken, headers } from "./api.js";
import { addDecisions, addSnapshot, changed, latest, state } from "./store.js";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 8000;
const SILENCE = 25000; // the server sends a heartbeat every 10 s; after this the line is taken for dead

let lastId = "";
/** @type {number|null} */ let started = null;
/** @type {(() => void)|null} */ let wake = null;

/** Try again now instead of when the pause is over. */
export const retryNow = () => wake?.();

const pause = (/** @type {number} */ ms) => new Promise((resolve) => {
  const timer = setTimeout(done, ms);
  function done() { clearTimeout(timer); wake = null; resolve(null); }
  wake = done;
});

async function* lines(/** @type {ReadableStream<Uint8Array>} */ body, /** @type {() => void} */ heard) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      heard();
      const parts = (rest + decoder.decode(value, { stream: true })).split(/\r\n|\n|\r/);
      rest = parts.pop() ?? "";
      yield* parts;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** @param {AsyncIterable<string>} source */
async function* events(source) {
  let type = "message";
  let data = [];
  let id = "";
  for await (const line of source) {
    if (line === "") {
      if (data.length) yield { type, id, data: data.join("\n") };
      type = "message";
      data = [];
      continue;
    }
    if (line.startsWith(":")) continue;
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") type = value;
    else if (field === "data") data.push(value);
    else if (field === "id") id = value;
  }
}

/** @param {{type: string, id: string, data: string}} event */
function take(event) {
  if (event.id) lastId = event.id;
  const read = JSON.parse(event.data);
  if (event.type === "snapshot") {
    addSnapshot(read);
  } else if (event.type === "decision") {
    addDecisions(read.items ?? []);
  } else {
    return;
  }
  changed();
}

/** Learn who answers. A server that was started anew counts from the beginning, so nothing old can be compared. */
async function greet() {
  const overview = await api("overview");
  state.overview = overview;
  if (typeof overview.now === "number") state.ahead = overview.now - Date.now() / 1000;
  if (started !== overview.started) {
    started = overview.started;
    lastId = "";
    state.snapshots = [];
    const [history, decisions] = await Promise.all([api("history?minutes=15"), api("decisions?limit=200")]);
    for (const snapshot of history.snapshots ?? []) addSnapshot(snapshot);
    state.decisions = [];
    state.decisionsMissed = 0;
    addDecisions([...(decisions.items ?? [])].reverse());
    const last = latest();
    if (last) lastId = String(last.seq);
  }
  changed();
}

async function listen() {
  const stop = new AbortController();
  /** @type {any} */ let silence;
  const heard = () => {
    clearTimeout(silence);
    silence = setTimeout(() => stop.abort(), SILENCE);
  };
  try {
    heard();
    const response = await fetch("api/v1/events", {
      headers: headers({ Accept: "text/event-stream", ...(lastId ? { "Last-Event-ID": lastId } : {}) }),
      signal: stop.signal,
      cache: "no-store",
    });
    if (response.status === 401) {
      askForToken();
      throw new Error("a token is needed");
    }
    if (!response.ok || !response.body) throw new Error(`the server answered ${response.status}`);
    state.connection = "live";
    state.retryAt = null;
    changed();
    for await (const event of events(lines(response.body, heard))) take(event);
    throw new Error("the server ended the stream");
  } finally {
    clearTimeout(silence);
    stop.abort();
  }
}

/** Read events for as long as the page lives. */
export async function follow() {
  let wait = FIRST_PAUSE;
  for (;;) {
    try {
      await greet();
      if (!state.needToken) {
        wait = FIRST_PAUSE;
        await listen();
      }
    } catch { /* whatever it was, the line is lost, and that is said */ }
    if (state.needToken) {
      state.connection = "connecting";
      changed();
      await new Promise((resolve) => { wake = () => { wake = null; resolve(null); }; });
      continue;
    }
    state.connection = "lost";
    state.retryAt = Date.now() + wait;
    changed();
    await pause(wait);
    wait = Math.min(wait * 2, LONGEST_PAUSE);
    if (state.connection === "lost") { state.retryAt = null; changed(); }
  }
}
