// Words and elements; nothing here is ever parsed as HTML.

export const NAMES = { S: "success", F: "failure", D: "finished", E: "error", L: "lost", ".": "not ended" };
export const KINDS = { S: "success", F: "failure", D: "finished", E: "error", L: "error", ".": "pending" };

/** An element with a class, children (text or elements) and properties. */
export function el(name, kind, children = [], properties = {}) {
  const made = Object.assign(document.createElement(name), properties);
  if (kind) made.className = kind;
  made.append(...[children].flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);
export const count = (n) => Math.round(n).toLocaleString("en");
export const percent = (value, digits = 1) =>
  value === null || value === undefined ? "-" : `${(100 * value).toFixed(digits)} %`;
export const range = (interval) =>
  interval ? `[${(100 * interval[0]).toFixed(1)}, ${(100 * interval[1]).toFixed(1)}]` : "";

/** Seconds in words: 12 s, 4 min 10 s, 2 h 5 min. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return "-";
  const s = Math.max(0, Math.round(seconds));
  if (s < 100) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

export const clock = (at) =>
  new Date(1000 * at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });

/** A colour of the style sheet. */
export const colour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** Do something at most once a frame. */
export function soon(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; work(); });
  };
}
