// Inside an episode: what was observed, answered, executed and rewarded, all over one axis of steps.
const TRACK = 34, DECISIONS = 26, SIDES = ["accent", "failure"];

class Tracks {
  /** Draws into `box`; `seek(step)` is called with a step that somebody points at. */
  constructor(box, seek) {
    Object.assign(this, { box, seek, sides: [], rows: [], step: 0 });
    this.playhead = el("i", "playhead");
    const point = (event) => {
      const at = this.at(event);
      if (at !== null) seek(at);
    };
    box.addEventListener("pointerdown", (event) => {
      if (event.target.closest("summary") || this.at(event) === null) return;
      event.preventDefault();
      box.setPointerCapture(event.pointerId);
      box.onpointermove = point;
      point(event);
    });
    for (const end of ["pointerup", "pointercancel"]) box.addEventListener(end, () => { box.onpointermove = null; });
    new ResizeObserver(soon(() => this.paint())).observe(box);
  }

  get steps() { return Math.max(1, this.total()); }

  /** Show one look, or two of a pair over each other; `steps()` is how many there are to be shown. */
  show(sides, steps) {
    const [first] = sides, pair = sides.length > 1;
    Object.assign(this, { sides, total: steps });
    const split = pair ? firstDifference(...sides) : null;
    this.split = split === null ? null : chunkAt(first, split + 1).first;
    const rows = sides.map((look, i) => ({ name: pair ? `decisions of ${"ab"[i]}` : "decisions", look, side: i, height: DECISIONS }));
    if (first.chunks.some((one) => one.delivered !== undefined)) rows.push(policyRow(first));
    if (first.rewards.length) rows.push(curveRow("reward", sides.map((one) => steady(one.rewards)), null));
    const of = (name, values, range, beyond) => curveRow(name, values.map(steady), range, beyond);
    const actions = first.actions.map((_, i) => of(first.actions.length > 1 ? `action[${i}]` : "action",
      sides.map((one) => one.actions[i] || []), first.ranges[i], pair ? [] : beyond(first, i)));
    const states = first.states.names.map((name, i) => curveRow(name,
      sides.map((one) => one.states.at.map((at, k) => [at, (one.states.values[i] || [])[k]])), null));
    const lines = (some) => el("div", "tracks-of", some.map((row) => this.line(row)));
    const folded = (name, some, open) => el("details", "", [el("summary", "", name), lines(some)], { open });
    this.rows = [...rows, ...actions, ...states];
    const more = first.states.more ? `, the first ${first.states.names.length} of ${first.states.names.length + first.states.more}` : "";
    this.box.replaceChildren(lines(rows),
      ...(actions.length ? [folded(`Action, ${actions.length} number${actions.length > 1 ? "s" : ""}, in the range that the env gives`, actions, actions.length <= 24)] : []),
      ...(states.length ? [folded(`Observed, ${states.length} number${states.length > 1 ? "s" : ""}${more}`, states, states.length <= 12)] : []),
      this.legend(first, pair), this.playhead);
    for (const one of this.box.querySelectorAll("details")) one.addEventListener("toggle", () => this.paint());
    this.paint();
  }

  legend(look, pair) {
    const entry = (kind, text) => el("li", "", [el("i", `swatch ${kind}`), text]);
    const parts = pair ? [entry("k-side-a", "a"), entry("k-side-b", "b")]
      : [entry("k-neutral", "executed"), ...(look.answers ? [entry("k-inferring faint", "answered beyond it")] : [])];
    if (!pair && look.chunks.some((one) => one.delivered !== undefined)) parts.push(entry("k-waiting", "waiting for a batch"), entry("k-inferring", "inferring"));
    if (this.split !== null) parts.push(entry("k-error", `the first decision that differs, at step ${count(this.split)}`));
    else if (pair) parts.push(el("li", "", "Both did the same at every step."));
    return el("ul", "legend", parts);
  }

  line(row) {
    row.canvas = el("canvas");
    row.value = el("output");
    row.canvas.style.height = `${row.height}px`;
    row.canvas.setAttribute("role", "img");
    row.canvas.setAttribute("aria-label", `${row.name}, by step`);
    return el("div", "track", [el("span", "", breakable(row.name), { title: row.name }), row.canvas, row.value]);
  }

  /** The step under a pointer; null beside the curves. */
  at(event) {
    const box = this.rows[0]?.canvas.getBoundingClientRect();
    if (!box || event.clientX < box.left - 4 || event.clientX > box.right + 4) return null;
    return Math.max(0, Math.min(this.steps, ((event.clientX - box.left) / box.width) * this.steps));
  }

  move(step) {
    this.step = step;
    const first = this.rows[0]?.canvas;
    if (!first) return;
    this.playhead.style.left = `${first.offsetLeft + (first.clientWidth * Math.min(step, this.steps)) / this.steps}px`;
    for (const row of this.rows) if (row.canvas.offsetParent) row.value.textContent = row.told ? row.told(step) : "";
  }

  paint() {
    const wide = this.rows[0]?.canvas.clientWidth;
    if (!wide) return;
    const colours = Object.fromEntries(["ink", "soft", "line", "accent", "failure", "inferring", "waiting", "error", "pending", "hover"].map((name) => [name, colour(name)]));
    for (const row of this.rows) if (row.canvas.offsetParent) this.paintRow(row, wide, colours);
    this.move(this.step);
  }

  paintRow(row, wide, colours) {
    const ratio = devicePixelRatio || 1, pen = row.canvas.getContext("2d"), high = row.height;
    row.canvas.width = Math.round(wide * ratio);
    row.canvas.height = Math.round(high * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const x = (step) => (wide * step) / this.steps;
    if (row.look) this.paintDecisions(row, pen, x, colours);
    else {
      pen.fillStyle = colours.line;
      for (const one of this.sides[0].chunks) pen.fillRect(Math.round(x(one.first)), 0, 1, high);
      row.paint(pen, x, high, colours);
    }
    if (this.split !== null) {
      pen.fillStyle = colours.error;
      pen.fillRect(x(this.split) - 1, 0, 2, high);
    }
  }

  /** Above what was executed of each chunk, below all that was answered from where the policy looked. */
  paintDecisions({ look, side }, pen, x, colours) {
    const half = DECISIONS / 2;
    look.chunks.forEach((one, i) => {
      pen.fillStyle = side ? colours.failure : colours.accent;
      pen.globalAlpha = i % 2 ? 0.5 : 0.85;
      pen.fillRect(x(one.first) + 0.5, 3, Math.max(1, x(one.end) - x(one.first) - 1), half - 3);
    });
    pen.fillStyle = colours.inferring;
    (look.answers?.actions || []).forEach((answer, i) => {
      const asked = look.answers.asked[i], end = Math.min(this.steps, asked + answer.filter((step) => step[0] !== null).length);
      pen.globalAlpha = 0.4;
      pen.fillRect(x(asked) + 0.5, half + 1 + (i % 2) * 5, Math.max(1, x(end) - x(asked) - 1), 4);
    });
    pen.globalAlpha = 1;
    pen.fillStyle = colours.ink;
    for (const one of look.chunks) pen.fillRect(x(one.first - one.late), 0, 1, DECISIONS);
  }
}

/** What is told of an attempt, with its steps counted and made chunks of: the steps before and at the end of each, how many
 * steps late its first was (`late`), and when the policy was at it, in seconds since it was asked. */
function understood(look) {
  const { times, age = [], layout = [], ranges = [[], []] } = look, numbers = look.chunk || (times?.chunk || []).flatMap((n, i) => new Array(times.steps[i]).fill(n));
  const rows = new Map((times?.chunk || []).map((number, i) => [number, i])), chunks = [];
  numbers.forEach((number, step) => {
    if (chunks.at(-1)?.chunk === number) { chunks.at(-1).end = step + 1; return; }
    const one = { chunk: number, first: step, end: step + 1, late: age[step] || 0 }, row = rows.get(number);
    if (row !== undefined && typeof times.delivered[row] === "number" && typeof times.requested[row] === "number") {
      for (const name of ["batched", "inferred", "delivered"]) one[name] = times[name][row] - times.requested[row];
      one.batch = times.batch_size[row];
    }
    chunks.push(one);
  });
  const names = layout.flatMap(([key, size]) => Array.from({ length: size }, (_, i) => `${key.replace(/^observation\//, "")}${size > 1 ? `[${i}]` : ""}`));
  const states = look.states || { at: [], values: [] }, actions = look.actions || [], isSound = (bound) => typeof bound === "number" && Math.abs(bound) < 1e6;
  return { ...look, steps: numbers.length, chunks, actions, rewards: look.rewards || [],
    ranges: actions.map((_, i) => (isSound(ranges[0][i]) && isSound(ranges[1][i]) ? [ranges[0][i], ranges[1][i]] : null)),
    states: { ...states, names: names.slice(0, states.values.length), more: names.length - states.values.length } };
}

/** Values that are good from one step to the next, as points: value i is of step i + 1. */
const steady = (values) => values.map((value, i) => [i + 1, value]);

/** The chunk that a step is of, which begins before it. */
function chunkAt(look, step) {
  const chunks = look.chunks;
  for (let i = chunks.length - 1; i >= 0; i--) if (chunks[i].first < step || !i) return chunks[i];
  return { first: 0, end: look.steps, late: 0, chunk: 0 };
}

/** The first step, from 0, at which two looks' actions differ; null where they do not. */
function firstDifference(a, b) {
  const shared = Math.min(a.steps, b.steps);
  for (let step = 0; step < shared; step++) {
    if (a.actions.some((values, i) => values[step] !== (b.actions[i] || [])[step])) return step;
  }
  return a.steps === b.steps ? null : shared;
}

/** What was answered and not executed of one number of an action: lines of points. */
function beyond(look, i) {
  const { asked = [], actions = [] } = look.answers || {}, found = [];
  actions.forEach((answer, k) => {
    const chunk = look.chunks.find((one) => one.first - one.late === asked[k]);
    const points = answer.map((step, j) => [asked[k] + j + 1, step[i]]).filter(([, value]) => value !== null && value !== undefined);
    found.push(points.filter(([at]) => !chunk || at >= chunk.end), points.filter(([at]) => chunk && at <= chunk.first + 1));
  });
  return found.filter((points) => points.length > 1);
}

/** Curves of one number, one for each side, over a range that is given or that of the values. */
function curveRow(name, lines, range, more = []) {
  const known = [...lines, ...more].flat().map(([, value]) => value).filter((value) => value !== null && value !== undefined);
  let [low, high] = range || [Math.min(...known, Infinity), Math.max(...known, -Infinity)];
  if (!known.length) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  const told = (step) => lines.map((line) => (line.length ? figure(line.findLast(([at]) => at <= Math.max(step, line[0][0]))[1]) : "")).join("\n");
  const paint = (pen, x, tall, colours) => {
    const y = (value) => tall - 3 - ((tall - 6) * (Math.min(Math.max(value, low), high) - low)) / (high - low);
    if (low < 0 && high > 0) { pen.fillStyle = colours.line; pen.fillRect(0, Math.round(y(0)), x(1e9), 1); }
    const draw = (points, shade, width, alpha) => {
      Object.assign(pen, { strokeStyle: shade, lineWidth: width, globalAlpha: alpha });
      pen.beginPath();
      let drawing = false;
      for (const [at, value] of points) {
        if (value === null || value === undefined) { drawing = false; continue; }
        if (drawing) pen.lineTo(x(at), y(value));
        else pen.moveTo(x(at), y(value));
        drawing = true;
      }
      pen.stroke();
      if (points.length < 20 && !more.includes(points)) for (const [at, value] of points) if (value !== null) pen.fillRect(x(at) - 1, y(value) - 1, 2, 2);
      pen.globalAlpha = 1;
    };
    Object.assign(pen, { fillStyle: colours.soft, font: "9px system-ui, sans-serif" });
    pen.fillText(figure(high), 2, 9);
    pen.fillText(figure(low), 2, tall - 2);
    for (const points of more) draw(points, colours.inferring, 1, 0.75);
    lines.forEach((points, i) => { pen.fillStyle = colours[SIDES[i]]; draw(points, colours[SIDES[i]], 1.5, 1); });
  };
  return { name, height: TRACK, told, paint, low, high };
}

/** How long each decision waited for its batch and was inferred, as bars where the policy looked. */
function policyRow(look) {
  const known = look.chunks.filter((one) => one.delivered !== undefined);
  // A few that took far longer, such as the first, would leave nothing to be seen of the others.
  const sorted = known.map((one) => one.delivered).sort((a, b) => a - b), top = Math.max(1e-6, 1.3 * sorted[Math.floor(0.9 * (sorted.length - 1))]), ms = (seconds) => figure(1e3 * seconds);
  const told = (step) => {
    const one = chunkAt(look, step);
    return one.delivered === undefined ? "" : `${ms(one.delivered)} ms`;
  };
  const paint = (pen, x, tall, colours) => {
    for (const one of known) {
      const left = x(one.first - one.late) + 1, wide = Math.max(3, Math.min(12, x(one.end) - x(one.first) - 2));
      const y = (seconds) => Math.min(tall - 2, (tall - 2) * (seconds / top)), waited = y(one.batched || 0), all = y(one.delivered);
      pen.fillStyle = colours.waiting;
      pen.fillRect(left, tall - waited, wide, waited);
      pen.fillStyle = colours.inferring;
      pen.fillRect(left, tall - all, wide, all - waited);
    }
  };
  return { name: "time to the answer", height: TRACK, told, paint };
}
