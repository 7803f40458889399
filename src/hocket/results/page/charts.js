// What is drawn of plain data: `widgets.py` says what each has.

/** An SVG element; sizes are attributes. */
function mark(name, attributes, children = []) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
const picture = (label, attributes, children) => mark("svg", { role: "img", "aria-label": label, ...attributes }, children);
const stretched = (wide, high, more) => ({ viewBox: `0 0 ${wide} ${high}`, preserveAspectRatio: "none", ...more });

const DRAWN = {
  bar({ parts }) {
    const total = parts.reduce((sum, [, , size]) => sum + size, 0) || 1;
    const share = ([, name, size]) => `${name}: ${percent(size / total)}`;
    const made = el("div", "shares", parts.map((part) => {
      const piece = el("i", `k-${part[0]}`, [], { title: share(part) });
      piece.style.flexGrow = part[2] / total;
      return piece;
    }));
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", parts.map(share).join(", "));
    return made;
  },

  legend: ({ entries }) => el("ul", "legend", entries.map(([kind, name, told]) =>
    el("li", "", [el("i", `swatch k-${kind}`), name, " ", el("b", "", told)]))),

  tiles: ({ entries }) => el("dl", "tiles", entries.map(([name, told, unit]) =>
    el("div", "", [el("dt", "", name), el("dd", "", [told, el("small", "", unit)])]))),

  note: (found) => (found.kind === "h3" ? el("h3", "", words(found.words)) : el("p", found.kind, words(found.words))),
  pre: ({ text }) => el("pre", "wrap", text, { tabIndex: 0 }),

  table({ heads, rows, right = [], kind }) {
    const side = (index) => (right.includes(index) ? "n" : kind || "");
    const head = el("tr", "", heads.map((name, i) => el("th", side(i), name)));
    const lines = rows.map((row) => el("tr", "", row.map((cell, i) => el("td", i ? side(i) : "", words(cell)))));
    return el("div", "scroll", el("table", "", [el("thead", "", head), el("tbody", "", lines)]), { tabIndex: 0 });
  },

  /** A dot and a bar for each row, over one scale. */
  intervals({ rows, ticks, zero }) {
    const low = ticks[0][0], high = ticks.at(-1)[0];
    const at = (value) => (100 * (Math.min(Math.max(value, low), high) - low)) / (high - low || 1);
    const lines = rows.map(({ label, value, interval, texts, strong, kind }) => {
      const marks = ticks.map(([place]) => mark("line", { class: place === zero ? "tick-zero" : "tick", x1: `${at(place)}%`, x2: `${at(place)}%`, y1: 0, y2: "100%" }));
      if (interval) marks.push(mark("rect", { class: "bar", x: `${at(interval[0])}%`, y: 11, rx: 3, height: 6, width: `${Math.max(at(interval[1]) - at(interval[0]), 0.2)}%` }));
      if (value !== null) marks.push(mark("circle", { class: "dot", cx: `${at(value)}%`, cy: 14, r: 5 }));
      return el("div", strong ? "ic-row strong" : "ic-row", [el("div", "ic-label", breakable(label), { title: label }),
        picture(`${label}: ${texts.join(" ")}`, { class: `ic-plot k-${kind}` }, marks),
        el("div", "ic-value", texts.map((text, i) => el(i ? "span" : "b", "", text)))]);
    });
    const names = ticks.map(([place, text]) => {
      const edge = at(place) < 1 ? " first" : at(place) > 99 ? " last" : "", name = el("span", `tick-label${edge}`, text);
      name.style.left = `${at(place)}%`;
      return name;
    });
    const scale = el("div", "ic-row ic-axis", [el("div"), el("div", "ic-scale", names), el("div")], { ariaHidden: "true" });
    return el("div", rows.length > 45 ? "intervals scroll long" : "intervals", [...lines, scale], rows.length > 45 ? { tabIndex: 0 } : {});
  },

  /** Stacked columns of counts. */
  columns({ groups, axis, label }) {
    const n = groups[0][1].length, gap = n <= 60 ? 1.2 : 0.4;
    const top = Math.max(1, ...groups[0][1].map((_, i) => groups.reduce((sum, [, some]) => sum + some[i], 0)));
    const floor = new Array(n).fill(0);
    const paths = groups.map(([kind, some]) => mark("path", { class: `k-${kind}`, d: some.map((high, i) => {
      if (!high) return "";
      floor[i] += high;
      return box(i * 10 + gap / 2, 100 - (100 * floor[i]) / top, 10 - gap, (100 * high) / top);
    }).join("") }));
    return framed(top, picture(label, { class: "plot", ...stretched(n * 10, 100) }, paths), axis);
  },

  /** Values over time as a filled line. */
  area({ values, label, axis }) {
    const top = niceCeiling(Math.max(...values)), last = values.length * 10, high = (value) => 100 - (100 * value) / top;
    const line = `M0 ${high(values[0])}${values.map((value, i) => `L${i * 10 + 5} ${high(value)}`).join("")}L${last} ${high(values.at(-1))}`;
    const marks = [mark("path", { class: "area", d: `${line}L${last} 100L0 100Z` }), mark("path", { class: "stroke", d: line })];
    return framed(top, picture(label, { class: "plot low", ...stretched(last, 100) }, marks), axis);
  },

  /** A row for each lane, and below them the policy's. */
  timeline({ names, spans, axis, label }) {
    const row = 16, bar = 11, wide = 1000, high = names.length * row + 4;
    const paths = spans.map(([kind, at, begins, ends]) => mark("path", { class: `k-${kind}`, d: at.map((y, i) => {
      const long = wide * (ends[i] - begins[i]), below = kind === "policy" ? 4 : 0;
      return long > 0.05 ? box(wide * begins[i], y * row + (row - bar) / 2 + below, Math.max(long, 0.3), bar) : "";
    }).join("") }));
    const drawing = picture(label, { class: "plot", ...stretched(wide, high) }, paths);
    drawing.style.height = `${high}px`;
    const labels = el("div", "lane-names", names.map((name) => el("span", "", name)));
    return el("div", "framed timeline", [labels, drawing, el("div", "x-axis", axis.map((text) => el("span", "", text)))]);
  },

  /** One kind of error: the user's own line, the attempts that it hit, and the last seconds of those that left something. */
  fault({ headline, counts, trials, more, text, own, kept }) {
    const hit = trials.flatMap(([cell, id]) => [", ", el("a", "", id, { href: `#e${cell}` })]).slice(1);
    const cards = kept.map(({ cell, attempt, name, films }) => {
      const screens = films.map(([source, poster]) => el("video", "", [], { preload: "none", muted: true, playsInline: true, tabIndex: -1, poster: poster || "", src: address(cell, attempt, source) }));
      const card = el("button", "card", [...(screens.length ? screens : [el("span", "none", "its steps")]), el("span", "what", breakable(name)), el("span", "sub", "look at its end")], { type: "button" });
      card.addEventListener("click", () => open(cell, attempt));
      return card;
    });
    const files = embedded ? kept.map((one) => el("li", "", [...breakable(`${one.name}: `), ...one.files.flatMap(([name, href]) => [el("a", "", name, { href }), " "])])) : [];
    return el("details", "", [el("summary", "", [el("code", "", headline), own ? el("span", "own", ["in ", el("code", "", own)]) : null, el("small", "", counts)]),
      el("p", "note", [...hit, more]), cards.length ? el("div", "gallery", cards) : null, el("pre", "", text, { tabIndex: 0 }),
      files.length ? el("p", "note", "What these attempts recorded up to their end:") : null, files.length ? el("ul", "", files) : null]);
  },

  /** Two episodes' films side by side. */
  pair({ kind, name, films, cell }) {
    const cards = films.map((one) => el("figure", "card", [
      one.source ? film(one.source, one.poster) : el("p", "", ["no film", one.make ? ": " : "", one.make ? el("code", "", one.make) : ""]),
      el("figcaption", "", [...breakable(one.who), el("div", "sub", one.told)])]));
    const both = (state.pairs || {})[cell] ? el("a", "step", "both in step, with their curves", { href: `#e${cell}` }) : null;
    return el("div", "pair", [el("h3", "", [el("i", `swatch k-${kind}`), ` ${name} `, both]), el("div", "gallery", cards)]);
  },
};
const drawn = (widget) => DRAWN[widget.draw](widget);

const box = (x, y, wide, high) => `M${x.toFixed(2)} ${y.toFixed(2)}h${wide.toFixed(2)}v${high.toFixed(3)}h-${wide.toFixed(2)}z`;

/** A drawing beside a scale from 0 to `top` and above its axis. */
const framed = (top, drawing, axis) => el("div", "framed", [el("div", "y-axis", [el("span", "", count(top)), el("span", "", "0")]),
  drawing, el("div", "x-axis", axis.map((text) => el("span", "", text)))]);

/** A film behind its picture, which is loaded once it is played, and then has controls. */
function film(source, poster) {
  const video = el("video", "", [], { preload: "none", muted: true, playsInline: true, tabIndex: 0, src: inside(source) });
  if (poster) video.poster = poster;
  const screen = el("div", "screen still", video);
  const start = (event) => {
    if (video.controls || (event.key && event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    video.controls = true;
    screen.classList.remove("still");
    video.play();
  };
  video.addEventListener("click", start);
  video.addEventListener("keydown", start);
  return screen;
}
