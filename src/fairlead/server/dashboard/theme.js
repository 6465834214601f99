/** Light, dark, or what the system says; charts ask here for the colours in force. */
import { changed, state } from "./store.js";

const KEY = "fairlead.theme";
const THEMES = ["system", "light", "dark"];
const query = matchMedia("(prefers-color-scheme: dark)");

function stored() {
  try {
    return localStorage.getItem(KEY) ?? "system";
  } catch {
    return "system";
  }
}

export function watchTheme() {
  state.theme = THEMES.includes(stored()) ? stored() : "system";
  query.addEventListener("change", () => { state.painted += 1; changed(); });
}

/** @param {string} theme */
export function chooseTheme(theme) {
  state.theme = theme;
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(KEY, theme);
  } catch { /* storage may be forbidden: the choice holds until the page is left */ }
  state.painted += 1;
  changed();
}

/** The value of a design token now. @param {string} name */
export const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export const SERIES = 8;

/** The colour of the n-th class or policy; the same in charts, bars and legends. @param {number} n */
export const seriesColor = (n) => token(`series-${n % SERIES}`);
