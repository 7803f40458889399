// Words and elements; nothing here is ever parsed as HTML.

const NAMES = { S: "success", F: "failure", D: "finished", E: "error", L: "lost", ".": "not ended",
  2: "both succeeded", a: "only a", b: "only b", 0: "neither", e: "error on one side" };
const KINDS = { S: "success", F: "failure", D: "finished", E: "error", L: "error", ".": "pending",
  2: "both", a: "only-a", b: "only-b", 0: "neither", e: "error" };

/** An element with a class, children (text or elements) and properties. */
function el(name, kind, children = [], properties = {}) {
  const made = Object.assign(document.createElement(name), properties);
  if (kind) made.className = kind;
  made.append(...[children].flat().filter((child) => child !== null && child !== undefined));
  return made;
}

const byId = (id) => document.getElementById(id);
const count = (n) => Math.round(n).toLocaleString("en");
/** A number with so many digits; one in the middle of two gets the even one, as in Python's tables: 6.25 is 6.2. */
function fixed(value, digits) {
  const scaled = value * 10 ** digits, isTie = Number.isInteger(value * 2 ** (digits + 1)) && Math.abs(scaled % 1) === 0.5;
  return (isTie ? (2 * Math.round(scaled / 2)) / 10 ** digits : value).toFixed(digits);
}
const percent = (value, digits = 1) => (value === null || value === undefined ? "-" : `${fixed(100 * value, digits)} %`);
const range = (interval) => (interval ? `[${fixed(100 * interval[0], 1)}, ${fixed(100 * interval[1], 1)}]` : "");

/** Seconds in words: 12 s, 4 min 10 s, 2 h 5 min. */
function duration(seconds) {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return "-";
  const s = Math.max(0, Math.round(seconds));
  if (s < 100) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

const clock = (at) =>
  new Date(1000 * at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });

/** A colour of the style sheet. */
const colour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** The colours of kinds, by the codes of their letters. */
function coloursOf(kinds) {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(Object.entries(kinds).map(([letter, kind]) => [letter.charCodeAt(0), style.getPropertyValue(`--${kind}`).trim()]));
}

/** Do something at most once a frame. */
function soon(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; work(); });
  };
}

/** A name that may be broken after its separators, where it is too long for its line. */
const breakable = (name) => String(name).split(/(?<=[_/-])/).flatMap((piece) => [piece, el("wbr")]).slice(0, -1);

/** A text with parts that are bold, code or links. */
const words = (parts) => [parts].flat().map((part) => {
  if (part === null || typeof part !== "object") return part;
  if (part.href !== undefined) return el("a", "", breakable(part.a), { href: part.href });
  return part.code !== undefined ? el("code", "", part.code) : el("b", "", part.b);
});

/** A number with about four digits, whatever its size. */
function figure(value) {
  if (value === null || value === undefined) return "-";
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  const digits = size >= 100 ? 1 : size >= 1 ? 2 : 4;
  return Number(fixed(value, digits)).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** Settings by names with dots; what is unset is left out, bytes are GiB, lists are texts. */
function flatOf(facts, prefix = "") {
  return Object.fromEntries(Object.entries(facts).flatMap(([key, value]) => {
    if (value === null || value === "" || (Array.isArray(value) && !value.length)) return [];
    if (typeof value === "object" && !Array.isArray(value)) return Object.entries(flatOf(value, `${prefix}${key}.`));
    if (key.endsWith("_bytes")) return [[prefix + key.replace(/_bytes$/, ""), `${(value / 2 ** 30).toFixed(1)} GiB`]];
    return [[prefix + key, Array.isArray(value) ? value.join(", ") : typeof value === "number" ? value : String(value)]];
  }));
}
