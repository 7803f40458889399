// The grid of outcomes: a canvas as large as what can be seen of it, drawn again when that changes.

const PENDING = ".".charCodeAt(0);
const codesOf = (letters) => [...letters].map((letter) => letter.charCodeAt(0)), FAILURES = codesOf("Fab"), ERRORS = codesOf("Ee");
const RAIL = 14, MOST_ALIGNED = 60;
const frame = byId("grid-frame"), room = byId("grid-room"), canvas = byId("grid");

class Grid {
  /** `open(cell)` is called with a cell that somebody chose. */
  constructor(open) {
    this.rows = [];
    this.cells = 0;
    this.codes = new Uint8Array(0);
    this.running = new Set();
    this.hidden = new Set();  // codes of letters
    this.labels = new Map();
    this.wantedLabel = null;
    this.chosen = -1;
    this.changed = 0;
    this.draw = soon(() => this.paint());
    addEventListener("resize", () => { this.layout(); this.draw(); });
    frame.addEventListener("scroll", this.draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", this.draw);
    canvas.addEventListener("click", (event) => {
      const cell = this.at(event);
      if (cell >= 0) open(cell);
    });
    frame.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }, move = moves[event.key];
      if (event.key === "Enter" && this.chosen >= 0) open(this.chosen);
      else if (move) this.walk(...move);
      else return;
      event.preventDefault();
    });
    canvas.addEventListener("mousemove", (event) => {
      const cell = this.at(event);
      canvas.title = cell < 0 ? "" : this.words(cell);
    });
  }

  plan(plan, outcomes) {
    const n = plan.n, tasks = plan.tasks.length;
    this.seeds = plan.seed || null;
    this.first = plan.first;
    this.tasks = plan.tasks;
    this.taskOf = plan.task || null;
    this.cells = n;
    this.codes = Uint8Array.from(outcomes, (letter) => letter.charCodeAt(0));
    this.names = new Set(plan.tasks.map(([suite]) => suite)).size > 1 ? plan.tasks.map((both) => both.join(" / ")) : plan.tasks.map(([, name]) => name);
    this.filled = plan.tasks.map(() => []);
    for (let cell = 0; cell < n; cell++) this.filled[this.taskOf ? this.taskOf[cell] : cell % tasks].push(cell);
    if (this.seeds) for (const row of this.filled) row.sort((a, b) => parseInt(this.seeds[a], 10) - parseInt(this.seeds[b], 10) || a - b);
    this.align();
    this.layout();
  }

  task(cell) { return this.taskOf ? this.taskOf[cell] : cell % this.tasks.length; }
  seed(cell) { return this.seeds ? this.seeds[cell] : this.first + Math.floor(cell / this.tasks.length); }
  letter(cell) { return String.fromCharCode(this.codes[cell]); }
  id(cell) { return [...this.tasks[this.task(cell)], this.seed(cell)].join("/"); }
  name(task) { return this.names[task]; }
  told(cell) { return NAMES[this.letter(cell)]; }
  words(cell) {
    const label = this.labels.get(cell);
    const state = this.running.has(cell) ? "running" : this.told(cell);
    return `${this.name(this.task(cell))}, seed ${this.seed(cell)}: ${state}${label ? `, ${label}` : ""}`;
  }

  change(letters) {
    this.changed += 1;
    for (const [letter, cells] of Object.entries(letters)) {
      for (const cell of cells) this.codes[cell] = letter.charCodeAt(0);
    }
  }

  /** The next failure or error after the chosen cell, or before it. */
  step(by) {
    for (let moved = 1; moved <= this.cells; moved++) {
      const cell = ((this.chosen + by * moved) % this.cells + this.cells) % this.cells;
      const letter = this.letter(cell);
      if ("FEabe".includes(letter) && !this.isHidden(cell)) return cell;
    }
    return -1;
  }

  /** Choose the next cell in a direction, and bring it into sight. */
  walk(down, right) {
    const at = Math.max(0, this.rows.findIndex((cells) => cells.includes(this.chosen)));
    const row = Math.max(0, Math.min(this.rows.length - 1, at + (this.chosen < 0 ? 0 : down))), cells = this.rows[row];
    const from = this.rows[at].indexOf(this.chosen);
    let to = from < 0 ? 0 : Math.max(0, Math.min(cells.length - 1, from + right));
    while (cells[to] < 0 && to > 0) to--;
    this.chosen = cells[to] ?? -1;
    const y = this.tops[row] + Math.floor(to / this.across) * (this.size + this.gap);
    if (y < frame.scrollTop) frame.scrollTop = y - this.size;
    else if (y + 2 * this.size > frame.scrollTop + frame.clientHeight) frame.scrollTop = y + 2 * this.size - frame.clientHeight;
    byId("grid-told").textContent = this.chosen < 0 ? "" : `${this.words(this.chosen)}. Enter opens it.`;
    this.draw();
  }

  /** Take the cells of a letter away, or bring them back. */
  toggle(letter) {
    const code = letter.charCodeAt(0);
    if (!this.hidden.delete(code)) this.hidden.add(code);
  }
  isShown(letter) { return !this.hidden.has(letter.charCodeAt(0)); }
  isHidden(cell) {
    if (this.wantedLabel !== null && this.labels.get(cell) !== this.wantedLabel) return true;
    return this.hidden.has(this.codes[cell]);
  }

  /** Where seeds are few, every task has a trial below its seed, or a gap where it has none. */
  align() {
    const key = (cell) => String(this.seed(cell));
    this.heads = this.cells > 2500 ? [] : [...new Set(this.filled.flat().map(key))];
    this.heads.sort((a, b) => parseInt(a, 10) - parseInt(b, 10));
    if (this.heads.length > MOST_ALIGNED || this.heads.length * this.filled.length < this.cells) this.heads = [];
    const column = new Map(this.heads.map((seed, i) => [seed, i]));
    this.aligned = this.filled.map((cells) => {
      const row = new Array(this.heads.length).fill(-1);
      for (const cell of cells) row[column.get(key(cell))] = cell;
      return row;
    });
  }

  layout() {
    this.changed += 1;
    const width = frame.clientWidth || 300;
    const narrow = width < 600;
    this.left = narrow ? 0 : Math.min(240, width / 4);
    const many = this.cells > 20000;
    this.size = many ? 6 : 13;
    this.gap = many ? 1 : 3;
    const space = width - this.left - RAIL, columns = this.heads ? this.heads.length : 0;
    this.isAligned = columns > 0 && space / columns >= 12;
    this.rows = this.isAligned ? this.aligned : this.filled || [];
    this.wide = this.isAligned ? Math.min(30, Math.floor(space / Math.max(12, columns)) - this.gap) : this.size;
    if (this.isAligned) this.size = 18;
    const pitch = this.size + this.gap;
    this.across = Math.max(1, Math.floor(space / (this.wide + this.gap)));
    let y = this.isAligned ? 18 : 2;
    const head = narrow ? 18 : 0;
    this.tops = this.rows.map((cells) => {
      const top = y + head;
      y = top + Math.max(1, Math.ceil(cells.length / this.across)) * pitch + (many ? 6 : 5);
      if (!narrow) y = Math.max(y, top + 19);
      return top;
    });
    this.head = head;
    this.height = Math.max(1, y);
    room.style.height = `${this.height}px`;
    this.width = width;
  }

  paint() {
    if (!this.cells) return;
    if (frame.clientWidth !== this.width) this.layout();
    const shown = Math.min(frame.clientHeight, this.height), ratio = devicePixelRatio || 1;
    const [wide, high] = [Math.round(this.width * ratio), Math.round(shown * ratio)];
    if (canvas.width !== wide || canvas.height !== high) {
      canvas.width = wide;
      canvas.height = high;
      canvas.style.width = `${this.width}px`;
      canvas.style.height = `${shown}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.width, shown);
    const colours = coloursOf(KINDS);
    const ink = colour("ink"), soft = colour("soft"), running = colour("inferring");
    pen.font = "13px system-ui, sans-serif";
    pen.textBaseline = "top";
    const top = frame.scrollTop, pitch = this.size + this.gap, step = this.wide + this.gap;
    if (this.isAligned) this.paintHeads(pen, top, step);
    const filters = this.hidden.size > 0 || this.wantedLabel !== null;
    for (let row = 0; row < this.rows.length; row++) {
      const cells = this.rows[row], y0 = this.tops[row] - top;
      const lines = Math.max(1, Math.ceil(cells.length / this.across));
      if (y0 + lines * pitch < 0) continue;
      if (y0 - this.head > shown) break;
      pen.fillStyle = soft;
      const room = this.head ? this.width : this.left - 14;
      pen.fillText(this.fit(pen, this.name(row), room), 0, this.head ? y0 - 17 : y0 + (this.isAligned ? 2 : 0));
      const first = Math.max(0, Math.floor(-y0 / pitch)) * this.across;
      const last = Math.min(cells.length, Math.ceil((shown - y0) / pitch) * this.across);
      let drawn = 0;  // the colour that the pen has: to change it takes longer than to draw a cell
      for (let i = first; i < last; i++) {
        const cell = cells[i];
        if (cell < 0) continue;
        const code = this.codes[cell], part = this.size / 3;
        const x = this.left + (i % this.across) * step, y = y0 + Math.floor(i / this.across) * pitch;
        if (filters) pen.globalAlpha = this.isHidden(cell) ? 0.12 : 1;
        if (code !== drawn) pen.fillStyle = colours[drawn = code];
        if (code !== PENDING) pen.fillRect(x, y, this.wide, this.size);
        else if (!this.running.has(cell)) pen.fillRect(x + part, y + part, part, part);
        else this.outline(pen, running, this.size > 8 ? 2 : 1, x + 1, y + 1, this.wide - 2, this.size - 2);
        if (this.labels.has(cell)) {
          pen.fillStyle = ink;
          pen.fillRect(x + part, y + part, part, part);
          drawn = 0;
        }
        if (cell === this.chosen) this.outline(pen, ink, 2, x - 1, y - 1, this.wide + 2, this.size + 2);
      }
    }
    pen.globalAlpha = 1;
    this.paintRail(pen, shown, colours);
    this.painted = (this.painted || 0) + 1;
  }

  outline(pen, shade, width, x, y, wide, high) {
    pen.strokeStyle = shade;
    pen.lineWidth = width;
    pen.strokeRect(x, y, wide, high);
  }

  /** The seeds above their columns, or every fifth where there are many. */
  paintHeads(pen, top, step) {
    const every = this.heads.length <= 12 ? 1 : 5;
    pen.fillStyle = colour("soft");
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "center";
    this.heads.forEach((seed, i) => { if (i % every === 0) pen.fillText(seed, this.left + i * step + this.wide / 2, 1 - top); });
    pen.font = "13px system-ui, sans-serif";
    pen.textAlign = "start";
  }

  /** Where there is more than can be seen, a rail at the side says where in all of it errors and failures are. */
  paintRail(pen, shown, colours) {
    if (this.height <= shown) return;
    const stamp = `${this.changed} ${shown} ${[...this.hidden]} ${this.wantedLabel}`;
    if (this.rail?.stamp !== stamp) this.rail = { stamp, worst: this.worst(shown) };
    for (let y = 0; y < shown; y++) {
      const code = this.rail.worst[y];
      if (!code) continue;
      pen.fillStyle = colours[code];
      pen.fillRect(this.width - RAIL + 4, y, RAIL - 4, ERRORS.includes(code) ? 3 : 1);
    }
    pen.strokeStyle = colour("faint");
    pen.strokeRect(this.width - RAIL + 3.5, (frame.scrollTop / this.height) * shown + 0.5, RAIL - 4, (shown / this.height) * shown - 1);
  }

  /** For each line of the rail the code of what is worst there; 0 where all is well. */
  worst(shown) {
    const found = new Uint8Array(shown), pitch = this.size + this.gap, rank = new Uint8Array(128);
    for (const code of FAILURES) rank[code] = 1;
    for (const code of ERRORS) rank[code] = 2;
    for (let row = 0; row < this.rows.length; row++) {
      const cells = this.rows[row];
      for (let i = 0; i < cells.length; i++) {
        const code = cells[i] < 0 ? 0 : this.codes[cells[i]];
        if (!rank[code] || this.isHidden(cells[i])) continue;
        const y = Math.floor(((this.tops[row] + Math.floor(i / this.across) * pitch) / this.height) * shown);
        if (rank[code] > rank[found[y]]) found[y] = code;
      }
    }
    return found;
  }

  fit(pen, text, room) {
    if (pen.measureText(text).width <= room) return text;
    let kept = text.length;
    while (kept > 1 && pen.measureText(`${text.slice(0, kept)}…`).width > room) kept--;
    return `${text.slice(0, kept)}…`;
  }

  at(event) {
    const box = canvas.getBoundingClientRect(), pitch = this.size + this.gap;
    const x = event.clientX - box.left - this.left, y = event.clientY - box.top + frame.scrollTop;
    if (x < 0) return -1;
    for (let row = 0; row < this.rows.length; row++) {
      const lines = Math.max(1, Math.ceil(this.rows[row].length / this.across));
      if (y < this.tops[row] || y >= this.tops[row] + lines * pitch) continue;
      const column = Math.floor(x / (this.wide + this.gap));
      if (column >= this.across) return -1;
      const index = Math.floor((y - this.tops[row]) / pitch) * this.across + column;
      return index < this.rows[row].length ? this.rows[row][index] : -1;
    }
    return -1;
  }
}
