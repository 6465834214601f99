/** Questions to the control API. Addresses are relative, so that the page also works behind a prefix. */
import { useEffect, useState } from "./html.js";
import { changed, state } from "./store.js";

const KEY = "fairlead.token";

export function token() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

/** Kept for this tab only, and only until it is closed. @param {string} value */
export function setToken(value) {
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch { /* storage may be forbidden */ }
}

export class ApiError extends Error {
  /** @param {number} status @param {string} message @param {any} [problem] */
  constructor(status, message, problem) {
    super(message);
    this.status = status;
    this.problem = problem;
  }
}

export const headers = (extra = {}) => {
  const held = token();
  return { ...(held ? { Authorization: `Bearer ${held}` } : {}), ...extra };
};

/** The server wants a token, or another one. */
export function askForToken() {
  state.tokenWrong = token() !== "";
  state.needToken = true;
  changed();
}

/**
 * @param {string} path below api/v1/
 * @param {{method?: string, body?: any, signal?: AbortSignal}} [options]
 */
export async function api(path, { method = "GET", body, signal } = {}) {
  const sent = body === undefined ? {} : { body: JSON.stringify(body) };
  const type = body === undefined ? {} : { "Content-Type": "application/json" };
  let response;
  try {
    response = await fetch(`api/v1/${path}`, { method, headers: headers({ Accept: "application/json", ...type }), signal, ...sent });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "The server cannot be reached. It may be restarting; try again.");
  }
  const text = await response.text();
  let read = null;
  try {
    read = text ? JSON.parse(text) : null;
  } catch { /* said below */ }
  if (response.ok) return read;
  if (response.status === 401) askForToken();
  const said = read?.detail ?? read?.message ?? read?.title ?? `The server answered ${response.status}.`;
  throw new ApiError(response.status, said, read);
}

/**
 * Ask again and again while the view is shown; a hidden page asks nothing.
 * @param {string|null} path null: ask nothing @param {number} every ms; 0: once @param {any} [after] asks at once when it changes
 * @returns {{data: any, error: ApiError|null, loading: boolean, reload: () => void}}
 */
export function usePoll(path, every = 0, after = null) {
  const [answer, setAnswer] = useState(/** @type {any} */ ({ path: null, data: null, error: null }));
  const [asked, ask] = useState(0);
  const { needToken } = state;
  useEffect(() => {
    if (path === null || needToken) return undefined;
    const stop = new AbortController();
    /** @type {any} */ let timer;
    const once = async () => {
      if (!document.hidden) {
        try {
          const data = await api(path, { signal: stop.signal });
          setAnswer({ path, data, error: null });
        } catch (error) {
          if (stop.signal.aborted) return;
          setAnswer((/** @type {any} */ last) => ({ path, data: last.path === path ? last.data : null, error }));
        }
      }
      if (every && !stop.signal.aborted) timer = setTimeout(once, every);
    };
    once();
    return () => { stop.abort(); clearTimeout(timer); };
  }, [path, every, after, asked, needToken]);
  const current = answer.path === path;
  return {
    data: current ? answer.data : null,
    error: current ? answer.error : null,
    loading: path !== null && !current,
    reload: () => ask((n) => n + 1),
  };
}

/** Draw anew every so often, for countdowns. @param {number} every ms */
export function useTick(every) {
  const [, draw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => draw((n) => n + 1), every);
    return () => clearInterval(timer);
  }, [every]);
}
