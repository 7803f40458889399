// The grid of outcomes: a canvas as large as what can be seen of it, drawn again when that changes.
import { byId, colour, KINDS, NAMES, soon } from "./text.js";

const PENDING = ".".charCodeAt(0);
const frame = byId("grid-frame"), room = byId("grid-room"), canvas = byId("grid");

export class Grid {
  /** `open(cell)` is called with a cell that somebody chose. */
  constructor(open) {
    this.rows = [];
    this.cells = 0;
    this.codes = new Uint8Array(0);
    this.running = new Set();
    this.hidden = new Set();
    this.labels = new Map();
    this.wantedLabel = null;
    this.chosen = -1;
    this.draw = soon(() => this.paint());
    addEventListener("resize", () => { this.layout(); this.draw(); });
    frame.addEventListener("scroll", this.draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", this.draw);
    canvas.addEventListener("click", (event) => {
      const cell = this.at(event);
      if (cell >= 0) open(cell);
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
    this.rows = plan.tasks.map(() => []);
    for (let cell = 0; cell < n; cell++) {
      this.rows[this.taskOf ? this.taskOf[cell] : cell % tasks].push(cell);
    }
    this.layout();
  }

  task(cell) { return this.taskOf ? this.taskOf[cell] : cell % this.tasks.length; }
  seed(cell) { return this.seeds ? this.seeds[cell] : this.first + Math.floor(cell / this.tasks.length); }
  letter(cell) { return String.fromCharCode(this.codes[cell]); }
  name(task) {
    const [suite, name] = this.tasks[task];
    return new Set(this.tasks.map(([one]) => one)).size > 1 ? `${suite} / ${name}` : name;
  }
  words(cell) {
    const label = this.labels.get(cell);
    const state = this.running.has(cell) ? "running" : NAMES[this.letter(cell)];
    return `${this.name(this.task(cell))}, seed ${this.seed(cell)}: ${state}${label ? `, ${label}` : ""}`;
  }

  change(letters) {
    for (const [letter, cells] of Object.entries(letters)) {
      for (const cell of cells) this.codes[cell] = letter.charCodeAt(0);
    }
  }

  /** The next failure or error after the chosen cell, or before it. */
  step(by) {
    for (let moved = 1; moved <= this.cells; moved++) {
      const cell = ((this.chosen + by * moved) % this.cells + this.cells) % this.cells;
      const letter = this.letter(cell);
      if ((letter === "F" || letter === "E") && !this.isHidden(cell)) return cell;
    }
    return -1;
  }

  isHidden(cell) {
    if (this.wantedLabel !== null && this.labels.get(cell) !== this.wantedLabel) return true;
    return this.hidden.has(this.letter(cell));
  }

  layout() {
    const width = frame.clientWidth || 300;
    const narrow = width < 600;
    this.left = narrow ? 0 : Math.min(240, width / 4);
    const many = this.cells > 20000;
    this.size = many ? 6 : 13;
    this.gap = many ? 1 : 3;
    const pitch = this.size + this.gap;
    this.across = Math.max(1, Math.floor((width - this.left) / pitch));
    let y = 2;
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
    const colours = Object.fromEntries(Object.entries(KINDS).map(([key, kind]) => [key.charCodeAt(0), colour(kind)]));
    const ink = colour("ink"), soft = colour("soft"), running = colour("inferring");
    pen.font = "13px system-ui, sans-serif";
    pen.textBaseline = "top";
    const top = frame.scrollTop, pitch = this.size + this.gap;
    const filters = this.hidden.size > 0 || this.wantedLabel !== null;
    for (let row = 0; row < this.rows.length; row++) {
      const cells = this.rows[row], y0 = this.tops[row] - top;
      const lines = Math.max(1, Math.ceil(cells.length / this.across));
      if (y0 + lines * pitch < 0) continue;
      if (y0 - this.head > shown) break;
      pen.fillStyle = soft;
      const room = this.head ? this.width : this.left - 14;
      pen.fillText(this.fit(pen, this.name(row), room), 0, this.head ? y0 - 17 : y0);
      const first = Math.max(0, Math.floor(-y0 / pitch)) * this.across;
      const last = Math.min(cells.length, Math.ceil((shown - y0) / pitch) * this.across);
      let drawn = 0;  // the colour that the pen has: to change it takes longer than to draw a cell
      for (let i = first; i < last; i++) {
        const cell = cells[i], code = this.codes[cell], part = this.size / 3;
        const x = this.left + (i % this.across) * pitch, y = y0 + Math.floor(i / this.across) * pitch;
        if (filters) pen.globalAlpha = this.isHidden(cell) ? 0.12 : 1;
        if (code !== drawn) pen.fillStyle = colours[drawn = code];
        if (code !== PENDING) pen.fillRect(x, y, this.size, this.size);
        else if (!this.running.has(cell)) pen.fillRect(x + part, y + part, part, part);
        else this.outline(pen, running, this.size > 8 ? 2 : 1, x + 1, y + 1, this.size - 2);
        if (this.labels.has(cell)) {
          pen.fillStyle = ink;
          pen.fillRect(x + part, y + part, part, part);
          drawn = 0;
        }
        if (cell === this.chosen) this.outline(pen, ink, 2, x - 1, y - 1, this.size + 2);
      }
    }
    pen.globalAlpha = 1;
    this.painted = (this.painted || 0) + 1;
  }

  outline(pen, shade, width, x, y, size) {
    pen.strokeStyle = shade;
    pen.lineWidth = width;
    pen.strokeRect(x, y, size, size);
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
      const column = Math.floor(x / pitch);
      if (column >= this.across) return -1;
      const index = Math.floor((y - this.tops[row]) / pitch) * this.across + column;
      return index < this.rows[row].length ? this.rows[row][index] : -1;
    }
    return -1;
  }
}
