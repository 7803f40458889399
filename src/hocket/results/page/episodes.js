// The table of episodes: those that the filters leave, a few hundred lines at a time.
const frameOfList = byId("episode-frame"), linesOfList = byId("episode-list");
const PORTION = 60, MANY = 1500;

class EpisodeList {
  constructor(grid, state, open) {
    Object.assign(this, { grid, state, open, columns: null, shown: [], drawn: 0, stamp: "" });
    byId("find").addEventListener("input", () => this.filter());
    frameOfList.addEventListener("scroll", () => {
      if (frameOfList.scrollTop + 2 * frameOfList.clientHeight > frameOfList.scrollHeight) this.more();
    });
  }

  /** Take what is known of each episode; of very many, errors, filmed ones and failures stand first. */
  begin(columns) {
    const { grid, state } = this;
    Object.assign(this, { columns, diverged: new Set(state.diverged) });
    const ended = Array.from(grid.codes.keys()).filter((cell) => grid.letter(cell) !== ".");
    const urgency = (cell) => (grid.letter(cell) === "E" ? 0 : state.films[cell] ? 1 : grid.letter(cell) === "F" ? 2 : 3);
    const piles = [[], [], [], []];
    for (const cell of ended) piles[ended.length > MANY ? urgency(cell) : 0].push(cell);
    this.order = piles.flat();
    this.names = grid.names.map((name) => name.toLowerCase());
    this.stamp = "";
    this.filter();
    drawLengths(columns.steps);
  }

  verdict(cell) { return NAMES[this.grid.letter(cell)] + (this.diverged?.has(cell) ? ", diverged" : ""); }

  /** All that the page has of one episode, or of an attempt at it that was lost. */
  episode(cell, attempt = null) {
    const { state, grid } = this, found = { cell, outcome: grid.letter(cell), films: state.films[cell] || [] };
    for (const [name, values] of Object.entries(this.columns || {})) if (values[cell] !== null) found[name] = values[cell];
    const lost = (state.lost || {})[cell] || [], one = lost.find((each) => each.attempt === attempt), error = (state.errors || {})[cell];
    const letters = new Map(lost.map((each) => [each.attempt, "L"]));
    if (found.outcome !== ".") letters.set(found.attempt, found.outcome);
    const attempts = [...letters].sort((a, b) => a[0] - b[0]);
    if (one && !(one.attempt === found.attempt && found.films.length)) {
      const outcome = one.attempt === found.attempt ? found.outcome : "L";
      return { cell, attempts, ...one, outcome, steps: outcome === "L" ? undefined : found.steps };
    }
    return { ...found, attempts, verdict: this.verdict(cell), label: state.labels[cell] || "", error: error?.error, own: error?.own };
  }

  filter() {
    if (!this.columns) return;
    const { grid } = this, wanted = byId("find").value.trim().toLowerCase();
    const stamp = JSON.stringify([wanted, [...grid.hidden], grid.wantedLabel]);
    if (stamp === this.stamp) return;
    this.stamp = stamp;
    const named = this.names.map((name) => name.includes(wanted));
    this.shown = this.order.filter((cell) => !grid.isHidden(cell) && (named[grid.task(cell)]
      || `${this.names[grid.task(cell)]} ${grid.seed(cell)}`.includes(wanted)));
    byId("count").textContent = `${count(this.shown.length)} episode${this.shown.length === 1 ? "" : "s"}`;
    this.drawn = 0;
    linesOfList.replaceChildren();
    frameOfList.scrollTop = 0;
    this.more();
  }

  more() {
    const next = this.shown.slice(this.drawn, this.drawn + PORTION);
    linesOfList.append(...next.map((cell) => this.line(cell)));
    this.drawn += next.length;
  }

  line(cell) {
    const { grid, columns, state } = this, letter = grid.letter(cell), number = (text) => el("td", "n", text);
    const known = (name, words) => number(columns[name][cell] === null ? "-" : words(columns[name][cell]));
    const task = el("a", "", breakable(grid.name(grid.task(cell))), { href: `#e${cell}` });
    const films = (state.films[cell] || []).map((link) => {
      const made = el("a", "film", cameraOf(link), { href: link });
      made.addEventListener("click", (event) => {
        if (event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        this.open(cell);
      });
      return made;
    });
    const row = el("tr", "", [el("td", "", task), number(grid.seed(cell)), el("td", "", el("span", `badge k-${KINDS[letter]}`, this.verdict(cell))),
      known("steps", count), known("reward", figure), known("chunks", count), known("seconds", (value) => value.toFixed(1)),
      known("attempt", (value) => value + 1), el("td", "", films)]);
    row.dataset.outcome = NAMES[letter];
    return row;
  }
}
