// Many runs: a table to sort, filter and group, against one that is pinned, two of them compared.
const FEW_SETTINGS = 5, LINES = 80;
const NO_COLUMN = new Set(["seed", "episodes", "lanes", "json_episodes"]);

class Runs {
  constructor() {
    Object.assign(this, { lines: new Map(), sort: ["began", -1], chosen: [], pinned: null, pairs: new Map(), hiddenColumns: new Set(), moreColumns: new Set(), rows: new Map(), drawn: 0 });
    this.draw = soon(() => this.drawNow());
    byId("run-find").addEventListener("input", () => { this.limit = LINES; this.draw(); });
    for (const id of ["run-group", "run-over"]) byId(id).addEventListener("change", this.draw);
    byId("run-compare").addEventListener("click", () => { state.refused = null; say({ compare: this.chosen }); });
    byId("run-frame").addEventListener("scroll", ({ target }) => {
      if (target.scrollTop + 2 * target.clientHeight > target.scrollHeight && this.limit < this.shown.length) { this.limit += LINES; this.draw(); }
    });
    Object.assign(this, { limit: LINES, shown: [] });
  }

  hear(message) {
    byId("kicker").textContent = "hocket watch";
    byId("title").textContent = message.name;
    document.title = `${message.name} · hocket`;
    byId("runs").hidden = false;
    this.unread = message.unread;
    for (const line of message.runs) {
      const { policy = "", env = "", ...settings } = flatOf(line.config || {});
      Object.assign(line, { policy, env, settings, code: codeOf(line.code || {}), sparks: sparksOf(line.points || {}) });
      line.found = [line.name, line.policy, line.env, line.code, line.host, ...Object.entries(line.settings || {}).map(([key, value]) => `${key}=${value}`), `policy=${line.policy}`, `env=${line.env}`].join("\n").toLowerCase();
      this.lines.set(line.name, line);
      for (const known of [this.rows, this.pairs]) known.delete(line.name);
    }
    for (const name of message.gone || []) this.lines.delete(name);
    this.settings = this.differing();
    state.received += 1;
    this.draw();
  }

  /** The settings whose values are not alike in all runs, those with few values first. */
  differing() {
    const all = [...this.lines.values()], kinds = new Map();
    for (const line of all) for (const name of Object.keys(line.settings || {})) if (!kinds.has(name)) kinds.set(name, new Set());
    for (const [name, values] of kinds) for (const line of all) if (line.settings) values.add(line.settings[name] ?? "");
    const found = [...kinds].filter(([, values]) => values.size > 1).sort((a, b) => a[1].size - b[1].size).map(([name]) => name);
    const differ = (name) => new Set(all.map((line) => line[name] ?? "")).size > 1;
    return ["policy", "env", ...found, ...["code", "host"].filter(differ)];
  }

  value(line, name) {
    if (["policy", "env", "host", "code"].includes(name)) return line[name] ?? "";
    const plain = { run: line.name, sweep: sweepOf(line), state: stateOf(line), began: line.began || line.written, episodes: line.training ? line.training.env_steps : line.done,
      success: successOf(line)?.value ?? null, errors: line.errors ?? null, against: this.pairs.get(line.name)?.difference ?? null };
    return name in plain ? plain[name] : (line.settings || {})[name] ?? "";
  }

  get columns() {
    const plain = ["policy", "env", "code", "host"], few = this.settings.filter((name) => !NO_COLUMN.has(name) && !plain.includes(name)).slice(0, FEW_SETTINGS);
    const settings = this.settings.filter((name) => this.moreColumns.has(name) || ([...plain, ...few].includes(name) && !this.hiddenColumns.has(name)));
    return ["run", "state", "began", "episodes", "success", ...(this.pinned ? ["against"] : []), "errors", ...settings];
  }

  drawNow() {
    const words_ = byId("run-find").value.toLowerCase().split(/\s+/).filter((one) => one), group = this.drawSelect("run-group", ["", "sweep", ...this.settings], "nothing");
    const [name, sign] = this.sort, matches = (line) => words_.every((word) => line.found.includes(word) || stateOf(line).includes(word));
    const order = (a, b) => {
      const [x, y] = [this.value(a, name), this.value(b, name)];
      if (x === y) return a.name < b.name ? -1 : 1;
      if (x === null || x === "") return 1;
      if (y === null || y === "") return -1;
      return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
    };
    this.shown = [...this.lines.values()].filter(matches).sort(order);
    if (group) {
      const first = new Map();
      this.shown.forEach((line, i) => { const key = String(this.value(line, group)); if (!first.has(key)) first.set(key, i); });
      const rank = new Map([...first.keys()].map((key) => [key, first.get(key)]));
      this.shown.sort((a, b) => rank.get(String(this.value(a, group))) - rank.get(String(this.value(b, group))));
    }
    const columns = this.columns, stamp = JSON.stringify([columns, this.pinned, this.chosen]);
    if (stamp !== this.stamp) { this.stamp = stamp; this.rows.clear(); this.drawHeads(columns); }
    byId("run-list").replaceChildren(...this.drawLines(columns, group));
    const reading = this.unread ? `, ${count(this.unread)} still to be read` : "";
    byId("run-count").textContent = `${count(this.shown.length)} of ${count(this.lines.size)} runs${reading}`;
    const button = byId("run-compare");
    button.disabled = this.chosen.length !== 2;
    button.textContent = this.chosen.length === 2 ? "compare these two" : `choose ${2 - this.chosen.length} to compare`;
    this.drawColumns();
    this.drawChart(group);
    this.askPairs();
    this.drawn += 1;
  }

  drawSelect(id, names, none) {
    const select = byId(id), was = select.value;
    if (select.dataset.names !== names.join()) {
      select.dataset.names = names.join();
      select.replaceChildren(...names.map((name) => el("option", "", name || none, { value: name })));
      select.value = names.includes(was) ? was : "";
    }
    return select.value;
  }

  drawHeads(columns) {
    const titles = { against: `against ${this.pinned}` };
    const held = document.activeElement?.dataset.sort;
    byId("run-heads").replaceChildren(el("tr", "", [el("th", "", el("span", "quiet", "choose")), ...columns.map((name) => {
      const [by, sign] = this.sort, isBy = by === name;
      const button = el("button", "", `${titles[name] || name}${isBy ? (sign > 0 ? " ▲" : " ▼") : ""}`, { type: "button" });
      button.dataset.sort = name;
      button.addEventListener("click", () => { this.sort = [name, isBy ? -sign : ["success", "began", "against"].includes(name) ? -1 : 1]; this.stamp = ""; this.draw(); });
      const head = el("th", ["episodes", "errors"].includes(name) ? "n" : "", button);
      head.setAttribute("aria-sort", isBy ? (sign > 0 ? "ascending" : "descending") : "none");
      return head;
    })]));
    if (held) byId("run-heads").querySelector(`[data-sort="${CSS.escape(held)}"]`)?.focus();
  }

  drawLines(columns, group) {
    if (!this.shown.length) return [el("tr", "", el("td", "", this.lines.size ? "No run fits the filter." : this.unread ? "Reading." : "There is no run here yet.", { colSpan: columns.length + 1 }))];
    const found = [];
    let key = null;
    for (const line of this.shown.slice(0, this.limit)) {
      const mine = group ? String(this.value(line, group)) : null;
      if (mine !== key) {
        key = mine;
        const some = this.shown.filter((one) => String(this.value(one, group)) === key), best = Math.max(...some.map((one) => successOf(one)?.value ?? -1));
        found.push(el("tr", "group", el("th", "", `${group}: ${key === "" ? "unset" : key} · ${count(some.length)} runs${best >= 0 ? ` · best ${percent(best)}` : ""}`, { colSpan: columns.length + 1 })));
      }
      if (!this.rows.has(line.name)) this.rows.set(line.name, this.row(line, columns));
      found.push(this.rows.get(line.name));
    }
    return found;
  }

  row(line, columns) {
    const pick = el("input", "", [], { type: "checkbox", checked: this.chosen.includes(line.name), ariaLabel: `Choose ${line.name} to compare` });
    pick.addEventListener("change", () => {
      this.chosen = pick.checked ? [...this.chosen, line.name].slice(-2) : this.chosen.filter((name) => name !== line.name);
      this.draw();
    });
    const isPinned = this.pinned === line.name;
    const pin = el("button", "pin", isPinned ? "pinned" : "pin", { type: "button", ariaLabel: `Pin ${line.name} as the baseline` });
    pin.setAttribute("aria-pressed", String(isPinned));
    pin.addEventListener("click", () => { this.pinned = isPinned ? null : line.name; this.pairs.clear(); this.draw(); });
    const made = el("tr", isPinned ? "pinned" : "", [el("td", "pick", [pick, pin]), ...columns.map((name) => this.cell(line, name))]);
    return made;
  }

  cell(line, name) {
    const value = this.value(line, name), text = value === null || value === undefined ? "" : String(value);
    if (name === "run") return el("td", "", el("a", "", breakable(line.name), { href: `${home}run/${line.name.split("/").map(encodeURIComponent).join("/")}` }));
    if (name === "state") return el("td", "", [el("span", `pulse${line.alive ? " live" : ""}`), stateOf(line)], { title: line.error || "" });
    if (name === "began") return el("td", "", value ? dateOf(value) : "");
    if (name === "episodes") return el("td", "n", line.training ? `${count(line.training.env_steps)} of ${count(line.training.steps)} steps` : line.done === line.planned ? count(line.done || 0) : `${count(line.done || 0)} of ${count(line.planned || 0)}`);
    if (name === "success") return el("td", "rate", rateOf(line));
    if (name === "errors") return el("td", "n", value === null ? "" : count(value));
    if (name === "against") {
      const pair = this.pairs.get(line.name);
      if (line.name === this.pinned) return el("td", "", "baseline");
      if (!pair) return el("td", "quiet", pair === null ? "other trials" : "…");
      const [low, high] = pair.interval || [null, null], isClear = low !== null && (low > 0 || high < 0);
      const signed = (part) => `${part > 0 ? "+" : part < 0 ? "−" : ""}${fixed(Math.abs(100 * part), 1)}`;
      return el("td", "", [el(isClear ? "b" : "span", isClear ? (low > 0 ? "better" : "worse") : "", signed(pair.difference)), low === null ? "" : el("small", "", ` [${signed(low)}, ${signed(high)}] n=${count(pair.n)}`)]);
    }
    if (!text) return el("td", "", "");
    const pick = el("button", "value", breakable(text.length > 60 ? `${text.slice(0, 57)}…` : text), { type: "button", title: `only ${name}=${text}` });
    pick.addEventListener("click", () => this.only(name, text));
    return el("td", name === "code" ? "code" : "", pick);
  }

  only(name, text) {
    const box = byId("run-find"), word = `${name}=${text}`.split(/\s/)[0];
    if (["host", "code"].includes(name)) box.value = `${box.value} ${text.split(/\s/)[0]}`.trim();
    else if (!box.value.split(/\s+/).includes(word)) box.value = `${box.value} ${word}`.trim();
    this.draw();
  }

  drawColumns() {
    const place = byId("run-columns").querySelector(".chips-of"), shown = this.columns;
    byId("run-columns").hidden = !this.settings.length;
    const stamp = JSON.stringify([this.settings, shown]);
    if (place.dataset.stamp === stamp) return;
    place.dataset.stamp = stamp;
    place.replaceChildren(...this.settings.map((name) => {
      const box = el("input", "", [], { type: "checkbox", checked: shown.includes(name) });
      box.addEventListener("change", () => {
        this[box.checked ? "moreColumns" : "hiddenColumns"].add(name);
        this[box.checked ? "hiddenColumns" : "moreColumns"].delete(name);
        this.draw();
      });
      return el("label", "", [box, ` ${name}`]);
    }));
  }

  /** Success over a number that differs, such as the training step in a checkpoint's name: a line for each group. */
  drawChart(group) {
    const numbers = this.settings.filter((name) => new Set(this.shown.map((line) => this.value(line, name)).filter((one) => typeof one === "number")).size > 1);
    const steps = new Set(this.shown.map(stepOf).filter((one) => one !== null)).size > 1 ? ["training step"] : [];
    const over = this.drawSelect("run-over", ["", ...steps, ...numbers], "nothing");
    byId("run-chart").hidden = !over;
    if (!over) return;
    const series = new Map(), at = (line) => (over === "training step" ? stepOf(line) : this.value(line, over));
    for (const line of this.shown) {
      const rate = successOf(line), x = at(line), key = String(this.value(line, group || "sweep"));
      if (rate && typeof x === "number") series.set(key, [...(series.get(key) || []), { x, ...rate, name: line.name }]);
    }
    byId("run-chart").replaceChildren(sweepChart([...series], over));
  }

  askPairs() {
    if (!this.pinned || !this.lines.has(this.pinned)) return;
    const wanted = this.shown.slice(0, this.limit).map((line) => line.name).filter((name) => name !== this.pinned && !this.pairs.has(name)).slice(0, 50);
    if (!wanted.length) return;
    for (const name of wanted) this.pairs.set(name, undefined);
    say({ against: this.pinned, runs: wanted });
  }

  against({ pinned, runs }) {
    if (pinned !== this.pinned) return;
    for (const [name, pair] of Object.entries(runs)) { this.pairs.set(name, pair); this.rows.delete(name); }
    this.draw();
  }

  compared(message) {
    const { hero, alerts, sections, runs, title } = message, place = byId("compared");
    place.hidden = false;
    place.querySelector("h2").textContent = title;
    place.querySelector(".lead").textContent = `a is ${runs[0]}, b is ${runs[1]}; differences are a - b.`;
    byId("compared-body").replaceChildren(el("p", "verdict", hero.verdict[1]),
      el("p", "big", [hero.big[0], el("small", "", hero.big[1])]), ...hero.notes.map((text) => el("p", "big-note", words(text))), ...hero.body.map(drawn),
      ...sections.flatMap((one) => [el("h3", "", one.title), ...one.body.map(drawn)]), ...alerts.map((one) => el("p", "note", words(one.words))));
    place.scrollIntoView({ block: "start" });
    place.tabIndex = -1;
    place.focus({ preventScroll: true });
  }
}

/** The code that a run was made with: names and how its commit or its digest begins; a plus where it was changed since. */
const codeOf = (code) => Object.entries(code).map(([name, one]) => [name, one.commit || one.sha256, one.changed]).filter(([, known]) => known)
  .map(([name, known, changed]) => `${name} ${String(known).slice(0, 7)}${changed ? "+" : ""}`).join(", ");

/** Some forty points of the success of a training run, evaluated where that was done. */
function sparksOf(points) {
  const found = ["eval/success", "train/success"].map((name) => points[name] || []).find((some) => some.length) || [];
  return found.filter((_, i) => i % Math.max(1, Math.floor(found.length / 40)) === 0);
}

function stateOf(line) {
  if (line.error) return "cannot be read";
  if (line.alive) return `running${line.left_s ? `, ${duration(line.left_s)} left` : ""}`;
  const training = line.training;
  return (training ? training.env_steps >= training.steps : line.done === line.planned) ? "done" : "stopped";
}

/** A run's rate: of its episodes, or of the last evaluation while it trained; null where there is none. */
function successOf(line) {
  const last = (line.evaluations || [])[0];
  if (line.rate && line.rate.value !== null) return { value: line.rate.value, interval: line.rate.interval, n: line.rate.n };
  if (last && typeof last["eval/success"] === "number") return { value: last["eval/success"], interval: last["eval/success_low"] === null ? null : [last["eval/success_low"], last["eval/success_high"]], n: last.n };
  return null;
}

/** A rate as a bar with its interval, and in figures; of a training run the curve, too. */
function rateOf(line) {
  const rate = successOf(line), sparks = line.sparks || [], parts = [];
  if (sparks.length > 1) {
    const right = sparks.at(-1)[0] || 1, path = sparks.map(([x, y], i) => `${i ? "L" : "M"}${((100 * x) / right).toFixed(1)} ${(22 - 20 * y).toFixed(1)}`).join("");
    parts.push(picture(`success over training: ${percent(sparks.at(-1)[1])} at its end`, { class: "spark", ...stretched(100, 24) }, [mark("path", { class: "stroke", d: path })]));
  } else if (rate?.interval) {
    const [low, high] = rate.interval, at = (value) => `${100 * value}%`;
    parts.push(picture(`${percent(rate.value)} ${range(rate.interval)}`, { class: "spark k-success" }, [mark("rect", { class: "bar", x: at(low), y: 9, height: 6, rx: 3, width: at(Math.max(high - low, 0.004)) }),
      mark("circle", { class: "dot", cx: at(rate.value), cy: 12, r: 4 })]));
  }
  if (rate) parts.push(el("span", "", [el("b", "", percent(rate.value)), el("small", "", ` ${range(rate.interval)} n=${count(rate.n)}`)]));
  return parts.length ? parts : [el("span", "quiet", "-")];
}

/** A policy with where its weights are, which may name the training step, and that step: the last number in it. */
const weightsOf = (line) => [line.policy, ...["weights", "checkpoint", "path"].map((name) => (line.settings || {})[`policy_config.${name}`])].filter((one) => one).join(" ");
const STEP = /(\d{2,})(k\b)?(?!.*\d{2})/;
function stepOf(line) {
  const found = STEP.exec(weightsOf(line));
  return line.training ? line.training.env_steps || null : found ? Number(found[1]) * (found[2] ? 1000 : 1) : null;
}
/** What all checkpoints of one training are called. */
const sweepOf = (line) => (line.training ? line.name : weightsOf(line).replace(STEP, "…"));

const dateOf = (at) => new Date(1000 * at).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });

/** Rates with their intervals over a number, a line for each series. */
function sweepChart(series, over) {
  const all = series.flatMap(([, points]) => points), shades = ["neutral", "inferring", "waiting", "error", "finished", "failure"];
  const [least, most] = [Math.min(...all.map(({ x }) => x)), Math.max(...all.map(({ x }) => x))];
  const x = (value) => 2 + (96 * (value - least)) / (most - least || 1), y = (value) => 96 - 92 * value, at = (part) => `${part.toFixed(2)}%`;
  const marks = [0, 0.25, 0.5, 0.75, 1].map((part) => mark("line", { class: "tick", x1: 0, x2: "100%", y1: at(y(part)), y2: at(y(part)) }));
  const shown = series.slice(0, 24).map(([name, points], i) => [name, points.sort((a, b) => a.x - b.x), `k-${shades[i % shades.length]}`]);
  marks.push(mark("svg", stretched(100, 100, { width: "100%", height: "100%" }), shown.map(([, points, shade]) =>
    mark("path", { class: `sweep ${shade}`, d: points.map((one, k) => `${k ? "L" : "M"}${x(one.x)} ${y(one.value)}`).join("") }))));
  for (const [, points, shade] of shown) {
    for (const one of points) {
      const place = at(x(one.x));
      if (one.interval) marks.push(mark("line", { class: `whisker ${shade}`, x1: place, x2: place, y1: at(y(one.interval[0])), y2: at(y(one.interval[1])) }));
      marks.push(mark("circle", { class: shade, cx: place, cy: at(y(one.value)), r: 4 }, [mark("title", {}, [`${one.name}: ${percent(one.value)} ${range(one.interval)}, n = ${count(one.n)}`])]));
    }
  }
  const key = el("ul", "legend", shown.map(([name, , shade]) => el("li", "", [el("i", `swatch ${shade}`), name])));
  return el("div", "", [el("div", "framed", [el("div", "y-axis", [el("span", "", "100 %"), el("span", "", "0 %")]), picture(`success over ${over}, ${all.length} runs`, { class: "plot sweeps" }, marks),
    el("div", "x-axis", [count(least), over, count(most)].map((text) => el("span", "", text)))]), shown.length > 1 ? key : null]);
}
