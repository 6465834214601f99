/** Numbers, durations and instants as people read them. */

const DASH = "–";

/** Read an instant given as epoch seconds or as ISO 8601. @param {any} value @returns {number|null} seconds */
export function instant(value) {
  if (value === null || value === undefined || value === "") return null;
  if (typeof value === "number") return value;
  const read = Date.parse(value);
  return Number.isNaN(read) ? null : read / 1000;
}

/** @param {number|null|undefined} seconds @returns {string} */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return DASH;
  if (!Number.isFinite(seconds)) return "∞";
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds === 0) return "0 ms";
  if (seconds < 0.001) return "<1 ms";
  if (seconds < 0.9995) return `${seconds < 0.00995 ? (seconds * 1000).toFixed(1) : Math.round(seconds * 1000)} ms`;
  if (seconds < 9.995) return `${seconds.toFixed(2)} s`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  return long(seconds);
}

/** Whole seconds and two units: for countdowns and ages. @param {number} seconds */
export function long(seconds) {
  const whole = Math.floor(Math.max(0, seconds));
  const parts = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  for (let at = 0; at < parts.length; at += 1) {
    const [size, unit] = /** @type {[number, string]} */ (parts[at]);
    if (whole < size && size > 1) continue;
    const first = Math.floor(whole / size);
    const next = parts[at + 1];
    if (!next) return `${first} ${unit}`;
    const second = Math.floor((whole % size) / Number(next[0]));
    return second ? `${first} ${unit} ${second} ${next[1]}` : `${first} ${unit}`;
  }
  return "0 s";
}

/** @param {number|null|undefined} value */
export function count(value) {
  if (value === null || value === undefined) return DASH;
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toLocaleString("en", { maximumFractionDigits: 1 });
}

/** @param {number|null|undefined} value */
export function rate(value) {
  if (value === null || value === undefined) return DASH;
  return value === 0 ? "0" : value < 10 ? value.toFixed(1) : count(Math.round(value));
}

/** @param {number|null|undefined} value a fraction */
export function percent(value) {
  if (value === null || value === undefined) return DASH;
  return `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;
}

/** @param {any} value an instant */
export function clock(value, fraction = false) {
  const at = instant(value);
  if (at === null) return DASH;
  const date = new Date(at * 1000);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return fraction ? `${time}.${String(date.getMilliseconds()).padStart(3, "0")}` : time;
}

/** Date and time; the day is left out today. @param {any} value */
export function moment(value) {
  const at = instant(value);
  if (at === null) return DASH;
  const date = new Date(at * 1000);
  if (date.toDateString() === new Date().toDateString()) return clock(at);
  return `${date.getFullYear()}-${String(date.getMonth() + 1).padStart(2, "0")}-${String(date.getDate()).padStart(2, "0")} ${clock(at)}`;
}

/** @param {number} n @param {string} one @param {string} [many] */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
