/** The one place that knows which view library is used. */
import htm from "./vendor/htm.js";
import { h } from "./vendor/preact.js";

export { render } from "./vendor/preact.js";
export {
  useEffect, useErrorBoundary, useId, useMemo, useRef, useState,
} from "./vendor/preact-hooks.js";

export const html = htm.bind(h);

/** Join class names, leaving out what is false. @param {...(string|false|null|undefined)} names */
export const names = (...names) => names.filter(Boolean).join(" ");
