// One episode: its video, also while it grows, a scrubber with the chunks' borders, and its label.

const theatre = byId("theatre"), stage = byId("episode");
const REFETCH_MS = 700;
const LABELS = ["dropped", "missed", "wrong object"];

class Player {
  /** `film(cell, attempt, name)` is a video's address; `label(cell, text)` keeps a label, null where none can be. */
  constructor(film, label, ask) {
    Object.assign(this, { film, label, ask, shown: null, stop: () => {} });
    theatre.addEventListener("close", () => this.end());
    theatre.addEventListener("click", (event) => event.target === theatre && theatre.close());
  }

  get isOpen() { return theatre.open; }
  close() { if (theatre.open) theatre.close(); }

  /** Show what is known of an episode; told again, only what is new is changed. */
  show(found, words) {
    const before = this.shown;
    const same = before && before.cell === found.cell && before.attempt === found.attempt;
    this.shown = found;
    if (!theatre.open) theatre.showModal();
    if (same && before.source === (found.source = this.source(found))) {
      this.tell(found, words);
      this.mark(found);
      return;
    }
    found.source = this.source(found);
    const at = same && this.video ? this.video.currentTime : 0;
    this.stop();
    this.build(found, words);
    if (at && this.video) {
      this.video.addEventListener("loadedmetadata", () => { this.video.currentTime = at; }, { once: true });
    }
  }

  source(found) {
    const [growing, sealed] = [found.growing || [], found.films || []];
    if (growing.length) return `+${growing[0]}`;
    return sealed.includes(this.camera) ? this.camera : sealed[0] || "";
  }

  end() {
    this.stop();
    this.stop = () => {};
    this.shown = null;
    stage.replaceChildren();
  }

  build(found, words) {
    const shut = el("button", "close", "×", { type: "button", title: "Close (Esc)" });
    shut.addEventListener("click", () => this.close());
    this.heading = el("h3");
    this.sub = el("p", "sub");
    const parts = [shut, this.heading, this.sub];
    if (found.source) {
      this.video = el("video", "", [], { muted: true, playsInline: true, controls: true, autoplay: true });
      this.scrubber = el("div", "scrubber", [], { title: "Lines are borders of chunks; click to go there" });
      parts.push(this.cameras(found, words), this.video, this.scrubber);
      this.play(found);
    } else {
      this.video = this.scrubber = null;
      const running = found.outcome === ".";
      parts.push(el("p", "note", running ? "No video of it grows." : "There is no video of this episode."));
    }
    this.labels = el("div", "labels");
    this.error = el("pre", "wrap");
    stage.replaceChildren(...parts.filter((part) => part), this.labels, this.error);
    this.tell(found, words);
    this.mark(found);
    this.offerLabels(found);
  }

  /** A button for each film of an episode that has several. */
  cameras(found, words) {
    if (found.growing?.length || found.films.length < 2) return null;
    return el("div", "labels", found.films.map((name) => {
      const button = el("button", "", cameraOf(name), { type: "button" });
      button.setAttribute("aria-pressed", String(name === found.source));
      button.addEventListener("click", () => { this.camera = name; this.show({ ...found }, words); });
      return button;
    }));
  }

  tell(found, words) {
    this.heading.textContent = words;
    const facts = [found.verdict || NAMES[found.outcome], found.steps === undefined ? null : `${count(found.steps)} steps`,
      found.seconds === undefined ? null : `${found.seconds.toFixed(1)} s`,
      found.reward === undefined || found.reward === null ? null : `return ${found.reward.toPrecision(4)}`,
      found.chunks === undefined ? null : `${count(found.chunks)} chunks`,
      found.attempt === undefined ? null : `attempt ${found.attempt + 1}`, found.lane === undefined ? null : `on lane ${found.lane}`,
      this.label || !found.label ? null : `“${found.label}”`];
    this.sub.replaceChildren(el("span", `badge k-${KINDS[found.outcome]}`, facts[0]), " · ",
      facts.slice(1).filter((fact) => fact).join(" · "));
    this.error.textContent = found.error || "";
    this.error.hidden = !found.error;
    this.labels.hidden = !this.label || found.outcome === ".";
    for (const button of this.labels.querySelectorAll("button[data-label]")) {
      button.setAttribute("aria-pressed", String(button.dataset.label === found.label));
    }
    const own = this.labels.querySelector("input");
    if (own && document.activeElement !== own) own.value = LABELS.includes(found.label) ? "" : found.label || "";
  }

  offerLabels(found) {
    if (!this.label) return;
    const buttons = LABELS.map((name, i) => {
      const button = el("button", "", [el("kbd", "", String(i + 1)), name], { type: "button" });
      button.dataset.label = name;
      button.addEventListener("click", () => this.toggle(name));
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
    this.tell(found, this.heading.textContent);
  }

  toggle(name) { this.label(this.shown.cell, this.shown.label === name ? "" : name); }

  /** A key that was pressed while an episode is shown; true where it meant something. */
  key(key) {
    if (!this.shown) return false;
    const number = Number(key), may = this.label && this.shown.outcome !== ".";
    if (may && number >= 1 && number <= LABELS.length) this.toggle(LABELS[number - 1]);
    else if (may && key === "0") this.label(this.shown.cell, "");
    else if (key === "w" && may) this.labels.querySelector("input").focus();
    else if ((key === "," || key === ".") && this.video) this.jump(key === "." ? 1 : -1);
    else return false;
    return true;
  }

  // -- the scrubber -----------------------------------------------------------------------------

  get length() {
    const video = this.video;
    if (isFinite(video.duration)) return video.duration;
    return video.buffered.length ? video.buffered.end(video.buffered.length - 1) : 0;
  }

  /** Seconds at which chunks end. */
  borders() {
    const found = this.shown, steps = found.borders || [];
    const total = found.steps || steps[steps.length - 1] || 1;
    // A film that grows shows every step at its rate; one that is done may have left some out.
    if (found.source.startsWith("+")) return steps.map((step) => step / found.rate);
    return steps.map((step) => (step / total) * this.length);
  }

  mark() {
    if (!this.scrubber) return;
    const length = this.length;
    const lines = this.borders().filter((at) => at < length - 1e-6).map((at) => {
      const line = el("i");
      line.style.left = `${(100 * at) / length}%`;
      return line;
    });
    const head = el("b");
    head.style.left = length ? `${(100 * this.video.currentTime) / length}%` : "0";
    this.scrubber.replaceChildren(...lines, head);
  }

  jump(by) {
    const now = this.video.currentTime, stops = [0, ...this.borders()];
    const next = by > 0 ? stops.find((at) => at > now + 0.02) : stops.reverse().find((at) => at < now - 0.05);
    if (next !== undefined) this.video.currentTime = Math.min(next, this.length);
  }

  play(found) {
    const video = this.video, seek = (event) => {
      const box = this.scrubber.getBoundingClientRect();
      video.currentTime = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * this.length;
    };
    this.scrubber.addEventListener("pointerdown", (event) => {
      seek(event);
      this.scrubber.setPointerCapture(event.pointerId);
      this.scrubber.onpointermove = seek;
    });
    this.scrubber.addEventListener("pointerup", () => { this.scrubber.onpointermove = null; });
    for (const event of ["timeupdate", "loadedmetadata", "durationchange", "progress"]) {
      video.addEventListener(event, () => this.shown && this.mark());
    }
    const name = found.source.replace(/^\+/, ""), address = this.film(found.cell, found.attempt, name);
    if (found.source.startsWith("+") && window.MediaSource) this.stop = grow(video, address, () => this.ask(found.cell));
    else { video.src = address; this.stop = () => { video.removeAttribute("src"); video.load(); }; }
  }
}

/** The camera that a film is named after. */
const cameraOf = (name) => decodeURIComponent(name.split("/").pop()).replace(/\.mp4$/, "");

/** Feed a video that grows to a player, until `stop` is called or the file is sealed. */
function grow(video, address, sealed) {
  const source = new MediaSource(), url = URL.createObjectURL(source);
  let at = 0, over = false, buffer = null, timer = 0;
  video.src = url;
  const stop = () => { over = true; clearTimeout(timer); URL.revokeObjectURL(url); };
  const more = async () => {
    if (over) return;
    try {
      const answer = await fetch(`${address}?from=${at}`, { cache: "no-store" });
      // 204 says that nothing is new, 205 that the file has got its name.
      if (answer.status === 205) { sealed(); return; }
      if (answer.status === 200 && !over) {
        const data = new Uint8Array(await answer.arrayBuffer());
        if (!buffer) {
          const codec = codecOf(data);
          if (!codec) { timer = setTimeout(more, REFETCH_MS); return; }
          buffer = source.addSourceBuffer(`video/mp4; codecs="${codec}"`);
        }
        if (over) return;
        buffer.appendBuffer(data);
        await new Promise((done) => buffer.addEventListener("updateend", done, { once: true }));
        at += data.length;
        const end = video.buffered.length ? video.buffered.end(video.buffered.length - 1) : 0;
        // Who fell far behind what is written sees the end of it, unless they paused.
        if (!video.paused && end - video.currentTime > 6) video.currentTime = end - 1;
        video.dispatchEvent(new Event("progress"));
        if (video.paused && at === data.length) video.play().catch(() => {});
      }
    } catch { /* the server went away; the page says so */ }
    timer = setTimeout(more, REFETCH_MS);
  };
  source.addEventListener("sourceopen", more, { once: true });
  return stop;
}

/** The codec of a fragmented MP4, such as avc1.42c00b; empty before its first bytes are there. */
function codecOf(data) {
  for (let i = 0; i + 12 < data.length; i++) {
    if (data[i] === 0x61 && data[i + 1] === 0x76 && data[i + 2] === 0x63 && data[i + 3] === 0x43) {
      return "avc1." + [...data.slice(i + 5, i + 8)].map((one) => one.toString(16).padStart(2, "0")).join("");
    }
  }
  return "";
}
