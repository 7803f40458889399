// One episode, or two of a pair in step: its films, what the policy saw, its curves, and its label.
const theatre = byId("theatre"), stage = byId("episode");
const LABELS = ["dropped", "missed", "wrong object"], LAST_S = 3;

class Player {
  /** `film(cell, attempt, name)` is a video's address; `label(cell, text)` keeps a label, null where none can be;
   * `ask(cell, attempt)` tells again what is known; `moved(found, seconds)` hears where one looks. */
  constructor({ film, label, ask, moved }) {
    Object.assign(this, { film, label, ask, moved, shown: null, step: 0, looks: new Map(), stop: () => {} });
    // It is told late, perhaps when another episode is shown already.
    theatre.addEventListener("close", () => theatre.open || this.end());
    theatre.addEventListener("click", (event) => event.target === theatre && theatre.close());
  }

  get isOpen() { return theatre.open; }
  close() { if (theatre.open) theatre.close(); }

  /** Show what is known of an episode, from a second of it on; told again, only what is new is changed. */
  show(found, words, at = null) {
    const before = this.shown, same = before && before.cell === found.cell && before.attempt === found.attempt;
    this.shown = found;
    found.source = (found.growing || [])[0] ? `+${found.growing[0]}` : JSON.stringify(found.sides ? found.sides.map((one) => one.films) : found.films || []);
    if (!theatre.open) theatre.showModal();
    if (!same || before.source !== found.source) {
      const kept = same ? this.seconds : null;
      this.stop();
      this.plays = kept === null && at === null && !matchMedia("(prefers-reduced-motion: reduce)").matches;
      this.build(found);
      this.startAt = kept ?? at;
      if (kept === null && at === null && "EL".includes(found.outcome)) this.startAt = -LAST_S;
      if (kept === null) this.moved(found, at ?? 0);
    }
    this.tell(found, words);
    this.learn();
  }

  /** What is inside the episode has come. */
  inside(key, look) {
    this.looks.set(key, look && understood(look));
    if (this.shown) this.learn();
  }

  /** Draw what is inside, where it is known; the curves stay what they are while it does not change. */
  learn() {
    const found = this.shown, known = found.sides ? found.sides.map((one) => one.look) : [this.looks.get(keyOf(found))];
    if (!known[0] || known.some((one) => !one) || this.drawn === known[0]) return this.place();
    [this.drawn] = known;
    this.sides = known;
    this.tracks.show(known, () => this.steps);
    this.tell(found, this.heading.textContent);
    this.prompt.textContent = known[0].prompt ? `“${known[0].prompt}”` : "";
    this.prompt.hidden = !known[0].prompt;
    this.room.hidden = false;
    return this.place();
  }

  end() {
    this.stop();
    Object.assign(this, { stop: () => {}, shown: null, drawn: null, sides: [], step: 0 });
    stage.replaceChildren();
    this.moved(null, 0);
  }

  build(found) {
    const button = (text, title, press, kind = "") => {
      const made = el("button", kind, text, { type: "button", title, ariaLabel: title });
      made.addEventListener("click", press);
      return made;
    };
    Object.assign(this, { drawn: null, sides: [], step: 0, heading: el("h3"), sub: el("p", "sub"), prompt: el("p", "prompt", [], { hidden: true }) });
    this.labels = el("div", "labels");
    this.error = el("div", "wrong");
    this.tries = el("div", "labels");
    this.now = el("output", "now");
    this.cameras = this.makeFilms(found);
    this.seen = el("div", "seen");
    this.scrubber = el("div", "scrubber", el("b"), { tabIndex: 0, title: "Drag, or use the arrow keys; lines are borders of chunks" });
    for (const [name, value] of [["role", "slider"], ["aria-label", "Step"], ["aria-valuemin", "0"]]) this.scrubber.setAttribute(name, value);
    this.room = el("div", "tracks", [], { hidden: true });
    this.tracks = new Tracks(this.room, (step) => this.seek(step));
    const films = this.cameras.flat().map(({ figure }) => figure);
    const transport = el("div", "transport", [button("«", "One decision back (,)", () => this.jump(-1)), button("‹", "One step back (←)", () => this.seek(Math.ceil(this.step) - 1)),
      films.length ? button("play", "Play or pause (space)", () => this.toggle()) : null,
      button("›", "One step on (→)", () => this.seek(Math.floor(this.step) + 1)), button("»", "One decision on (.)", () => this.jump(1)), this.now]);
    const absent = found.outcome === "." ? "No video of it grows." : "There is no video of this episode.";
    stage.replaceChildren(button("×", "Close (Esc)", () => this.close(), "close"), this.heading, this.sub, this.prompt, this.tries, this.error,
      el("div", "inside", [el("div", "films", films.length ? films : el("p", "note", absent)),
        el("div", "", [transport, this.scrubber, this.seen, this.room])]), this.labels);
    this.listen();
    this.offerLabels();
    this.scrubber.focus({ preventScroll: true });
  }

  /** The films of each side, all in step: the first of them leads. */
  makeFilms(found) {
    const growing = (found.growing || [])[0], sides = found.sides || [{ films: growing ? [growing] : found.films || [] }];
    return sides.map((side, i) => side.films.map((name) => {
      const video = el("video", "", [], { muted: true, playsInline: true, preload: "auto", autoplay: this.plays && !"EL".includes(found.outcome) });
      const at = side.film ? side.film(name) : this.film(found.cell, found.attempt, name);
      if (growing && window.MediaSource) {
        this.stop = grow(video, at, () => this.ask(found.cell, found.attempt));
      } else video.src = at;
      const told = found.sides ? `${"ab"[i]}: ${side.name} · ${cameraOf(name)}` : cameraOf(name);
      return { video, name, figure: el("figure", "card", [video, el("figcaption", "", told)]) };
    }));
  }

  get video() { return this.cameras?.flat()[0]?.video || null; }
  get look() { return this.sides?.[0] || null; }
  /** Steps a second of the film, and all steps that there are. */
  get rate() { return this.look?.rate || this.shown.rate || (this.isFilmed ? this.steps / this.video.duration : 10); }
  get isFilmed() { return Boolean(this.video && this.video.duration > 0 && isFinite(this.video.duration)); }
  get steps() {
    // A worker that died told less of its steps than of its film.
    const filmed = "EL".includes(this.shown.outcome) && this.look && this.isFilmed ? Math.round(this.video.duration * this.look.rate) - this.look.stride : 0;
    if (this.look) return Math.max(filmed, ...this.sides.map((one) => one.steps));
    if (this.shown.steps !== undefined && this.shown.steps !== null) return this.shown.steps;
    const buffered = this.video?.buffered;
    return buffered?.length ? Math.round(buffered.end(buffered.length - 1) * this.shown.rate) : (this.shown.borders || []).at(-1) || 0;
  }
  get seconds() { return this.step / this.rate; }

  listen() {
    const { video } = this;
    for (const one of this.cameras.flat()) {
      one.video.addEventListener("loadedmetadata", () => { this.place(); this.tracks.paint(); });
      one.video.addEventListener("click", () => this.toggle());
    }
    if (video) {
      const follow = () => {
        if (video.seeking || !this.shown) return;
        if (!video.paused) this.step = Math.min(this.steps, Math.floor(video.currentTime * this.rate));
        for (const one of this.cameras.flat().slice(1)) if (!video.paused && Math.abs(one.video.currentTime - video.currentTime) > 0.15) one.video.currentTime = video.currentTime;
        this.mark();
        if (!video.paused) requestAnimationFrame(follow);
      };
      for (const event of ["play", "timeupdate", "progress", "pause", "ended"]) video.addEventListener(event, follow);
      video.addEventListener("pause", () => this.shown && this.moved(this.shown, this.seconds));
    }
    const point = (event) => {
      const box = this.scrubber.getBoundingClientRect();
      this.seek(Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * this.steps);
    };
    this.scrubber.addEventListener("pointerdown", (event) => {
      point(event);
      this.scrubber.setPointerCapture(event.pointerId);
      this.scrubber.onpointermove = point;
    });
    this.scrubber.addEventListener("pointerup", () => { this.scrubber.onpointermove = null; });
  }

  /** Where a link said, once it is known how long all is. */
  place() {
    if (this.startAt !== null && this.startAt !== undefined && (this.look || this.isFilmed)) {
      const at = this.startAt;
      if (!this.video || this.isFilmed) this.startAt = null;
      this.seek(at < 0 ? this.steps + at * this.rate : at * this.rate);
      if (at < 0) this.toggle();
    } else this.mark();
  }

  /** Look at a step; the films stop there. */
  seek(step) {
    this.step = Math.max(0, Math.min(this.steps, Math.round(step)));
    for (const { video } of this.cameras.flat()) {
      if (!video.paused) video.pause();
      // The middle of the frame: its border belongs to the one before.
      const end = isFinite(video.duration) ? video.duration : this.steps / this.rate;
      if (video.readyState) video.currentTime = Math.max(0, Math.min(end - 1e-3, (this.step + 0.5 * (this.look?.stride || 1)) / this.rate));
    }
    this.mark();
    this.moved(this.shown, this.seconds);
  }

  toggle() {
    const films = this.cameras.flat().map(({ video }) => video);
    const playing = films[0] && !films[0].paused;
    if (!playing && this.step >= this.steps) for (const video of films) video.currentTime = 0;
    for (const video of films) if (playing) video.pause(); else video.play().catch(() => {});
  }

  /** The steps at which the policy looked. */
  get decisions() {
    if (this.look) return this.look.chunks.map((one) => one.first);
    return [0, ...(this.shown.borders || [])];
  }

  jump(by) {
    const stops = by > 0 ? this.decisions : [...this.decisions].reverse();
    const next = stops.find((at) => (by > 0 ? at > this.step : at < this.step));
    if (next !== undefined) this.seek(next);
  }

  mark() {
    const total = this.steps || 1, { look, step } = this, place = (at) => `${(100 * Math.min(at, total)) / total}%`;
    const stamp = `${total} ${this.decisions.length}`;
    if (stamp !== this.scrubber.dataset.stamp) {
      this.scrubber.dataset.stamp = stamp;
      this.scrubber.replaceChildren(...this.decisions.filter((at) => at < total).map((at) => {
        const line = el("i");
        line.style.left = place(at);
        return line;
      }), el("b"));
      this.scrubber.setAttribute("aria-valuemax", String(total));
    }
    this.scrubber.lastChild.style.left = place(step);
    const chunk = look && look.chunks.length ? chunkAt(look, step + 0.5) : null, seconds = fixed(this.seconds, 2);
    const told = [`step ${count(step)} of ${count(this.steps)}`, `${seconds} s`, chunk ? `decision ${chunk.chunk + 1} of ${look.chunks.length}` : null,
      chunk && chunk.late ? `${chunk.late} steps late` : null, chunk && chunk.batch ? `in a batch of ${chunk.batch}` : null].filter((one) => one);
    this.now.textContent = told.join(" · ");
    this.scrubber.setAttribute("aria-valuenow", String(Math.round(step)));
    this.scrubber.setAttribute("aria-valuetext", told.join(", "));
    if (look) { this.tracks.move(step); this.see(chunk); }
  }

  /** What the policy saw at the decision that is being executed: to the pixel where it is kept, else of the film. */
  see(chunk) {
    if (!chunk || this.shown.sides || !(this.look.pictures || this.isFilmed)) return;
    const at = Math.max(0, chunk.first - chunk.late), { pictures } = this.look;
    if (this.seen.dataset.at === String(at)) return;
    this.seen.dataset.at = at;
    this.seen.parentNode.classList.add("with-seen");
    const caption = el("figcaption", "", `What the policy saw at step ${count(at)}: ${pictures ? "to the pixel" : "from the film, lossy"}`);
    if (pictures) {
      const images = Object.entries(pictures).map(([camera, some]) => (some[at] ? el("img", "", [], { src: some[at], alt: camera, title: camera }) : null));
      return this.seen.replaceChildren(...images.filter((one) => one), caption);
    }
    if (!this.glances) this.glances = new WeakMap();
    const glances = this.cameras.flat().map(({ video, name }) => {
      if (!this.glances.has(video)) this.glances.set(video, el("video", "", [], { muted: true, playsInline: true, preload: "auto", src: video.src, title: cameraOf(name), tabIndex: -1 }));
      const glance = this.glances.get(video), go = () => { if (this.look) glance.currentTime = Math.min((glance.duration || 1e9) - 1e-3, (at + 0.5 * this.look.stride) / this.rate); };
      if (glance.readyState) go();
      else glance.addEventListener("loadedmetadata", go, { once: true });
      return glance;
    });
    return this.seen.replaceChildren(...glances, caption);
  }

  tell(found, words) {
    this.heading.textContent = words;
    const extra = found.told || this.look?.told || {}, known = (value, text) => (value === undefined || value === null ? null : text(value));
    const facts = [found.verdict || NAMES[found.outcome] || "", known(found.steps, (n) => `${count(n)} steps`), known(found.seconds, (s) => `${s.toFixed(1)} s`),
      known(found.reward, (value) => `return ${figure(value)}`), known(found.chunks, (n) => `${count(n)} chunks`), known(extra.progress, (value) => `subgoals ${percent(value, 0)}`),
      known(found.attempt, (n) => `attempt ${n + 1}`), known(found.lane, (lane) => `on lane ${lane}`), this.label || !found.label ? null : `“${found.label}”`];
    this.sub.replaceChildren(found.outcome ? el("span", `badge k-${KINDS[found.outcome]}`, facts[0]) : facts[0], ...facts.slice(1).filter((fact) => fact).map((fact) => ` · ${fact}`),
      ...Object.entries(extra.told || {}).map(([name, value]) => ` · ${name} ${typeof value === "number" ? figure(value) : value}`), ...(extra.remarks || []).map((text) => el("span", "remark", text)));
    this.error.replaceChildren(...(found.error ? [found.own ? el("p", "own", ["in ", el("code", "", found.own)]) : null, el("pre", "wrap", found.error, { tabIndex: 0 })].filter((one) => one) : []));
    this.error.hidden = !found.error;
    const tries = found.attempts || [];
    this.tries.hidden = tries.length < 2;
    this.tries.replaceChildren(...tries.map(([attempt, letter]) => {
      const button = el("button", "", `attempt ${attempt + 1}, ${letter === "." ? "running" : NAMES[letter]}`, { type: "button" });
      button.setAttribute("aria-pressed", String(attempt === found.attempt));
      button.addEventListener("click", () => this.ask(found.cell, attempt));
      return button;
    }));
    this.labels.hidden = !this.label || "L.".includes(found.outcome) || found.sides;
    for (const button of this.labels.querySelectorAll("button[data-label]")) button.setAttribute("aria-pressed", String(button.dataset.label === found.label));
    const own = this.labels.querySelector("input");
    if (own && document.activeElement !== own) own.value = LABELS.includes(found.label) ? "" : found.label || "";
  }

  offerLabels() {
    if (!this.label) return;
    const buttons = LABELS.map((name, i) => {
      const button = el("button", "", [el("kbd", "", String(i + 1)), name], { type: "button" });
      button.dataset.label = name;
      button.addEventListener("click", () => this.keep(name));
      return button;
    });
    const own = el("input", "", [], { placeholder: "own words (w)", maxLength: 200, value: "" });
    own.setAttribute("aria-label", "Label in your own words");
    own.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") { this.label(this.shown.cell, own.value.trim()); own.blur(); }
      if (event.key === "Escape") { event.preventDefault(); own.blur(); }
    });
    const none = el("button", "", [el("kbd", "", "0"), "none"], { type: "button" });
    none.addEventListener("click", () => this.label(this.shown.cell, ""));
    this.labels.replaceChildren(...buttons, own, none);
  }

  keep(name) { this.label(this.shown.cell, this.shown.label === name ? "" : name); }

  /** A key that was pressed while an episode is shown; true where it meant something. */
  key(key) {
    if (!this.shown) return false;
    const number = Number(key), may = !this.labels.hidden, moves = { ",": -1, ".": 1 }, steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (may && number >= 1 && number <= LABELS.length) this.keep(LABELS[number - 1]);
    else if (may && key === "0") this.label(this.shown.cell, "");
    else if (may && key === "w") this.labels.querySelector("input").focus();
    else if (moves[key]) this.jump(moves[key]);
    else if (steps[key]) this.seek(steps[key] > 0 ? Math.floor(this.step) + 1 : Math.ceil(this.step) - 1);
    else if (key === "Home" || key === "End") this.seek(key === "End" ? this.steps : 0);
    else if (key === " " && this.video && document.activeElement?.tagName !== "BUTTON" && document.activeElement?.tagName !== "SUMMARY") this.toggle();
    else return false;
    return true;
  }
}

/** What is known inside of an attempt is named by its cell and its number. */
const keyOf = (found) => `${found.cell}-${found.attempt || 0}`;
