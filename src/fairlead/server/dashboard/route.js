/** Where the page is: #/view/rest?query. */
import { useEffect, useState } from "./html.js";

export function read() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...rest] = path.split("/").map(decodeURIComponent);
  return { view: view || "now", rest, query: new URLSearchParams(query) };
}

/** @param {string} view may have parts, already encoded @param {Record<string, string>} [query] */
export function address(view, query = {}) {
  const written = new URLSearchParams(Object.entries(query).filter(([, value]) => value)).toString();
  return `#/${view}${written ? `?${written}` : ""}`;
}

/** @param {string} view @param {Record<string, string>} [query] */
export const go = (view, query) => { location.hash = address(view, query); };

export function useRoute() {
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const onChange = () => setRoute(read());
    addEventListener("hashchange", onChange);
    return () => removeEventListener("hashchange", onChange);
  }, []);
  return route;
}
