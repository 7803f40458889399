// The page: takes what it is told, all at once or as it changes, and keeps what is shown true.
const embedded = byId("data");
const [, token, kind, ...rest] = embedded ? [] : location.pathname.split("/");
const home = `/${token}/`, runName = kind === "run" ? rest.join("/").replace(/\/$/, "") : "";
const HANGS_S = 30, CARDS = 12, MOST_LANES = 60, MOST_LOOKED = 8;
const state = { head: {}, lanes: [], feed: [], films: {}, rates: {}, labels: {}, looked: new Set(), auto: true, received: 0 };
let socket = null, silent = false;

/** A film's address: by cell and camera of a viewer, or a link beside the page, or what is inside it. */
const address = (cell, attempt, name) => (embedded ? inside(name)
  : `${home}film/${runName ? encodeURI(runName) : ""}/${cell}/${attempt}/${encodeURIComponent(name)}`);
const inside = (link) => (state.inside || {})[link] || link;
const say = (message) => socket && socket.readyState === 1 && socket.send(JSON.stringify(message));
const grid = new Grid(open);
const player = new Player(address, embedded ? null : (cell, label) => say({ cell, label }), (cell) => say({ episode: cell }));
const list = new EpisodeList(grid, state, open);
const drawAll = soon(() => { drawHead(); drawFilters(); drawFeed(); drawTasks(); drawLanes(); list.filter(); grid.paint(); });

/** Show an episode: what is here of it, or what the viewer answers. */
function open(cell) {
  grid.chosen = cell;
  grid.draw();
  if (!embedded) say({ episode: cell });
  else if (!state.sides) { showEpisode(list.episode(cell)); location.replace(`#e${cell}`); }
}

// -- what is inside the page ----------------------------------------------------------------------

function fill(message) {
  const { hero, columns, beside, ...more } = message, main = byId("main");
  Object.assign(state, more);
  if (message.sides) {
    message.outcomes = [...message.sides[0]].map((a, cell) => pairOf(a, message.sides[1][cell]));
    grid.told = (cell) => message.sides.map((side, i) => `${"ab"[i]} ${NAMES[side[cell]]}`).join(", ");
  }
  if (message.plan) grid.plan(message.plan, message.outcomes);
  for (const { id, title, lead, body } of message.sections) {
    const made = body.map(drawn), known = byId(id);
    const section = known || el("section", "", [el("h2"), el("p", "lead")], { id });
    section.querySelector("h2").textContent = title;
    if (lead) section.querySelector(".lead").replaceChildren(...words(lead));
    else section.querySelector(".lead")?.remove();
    if (known && id === "videos") byId("feed").before(...made);
    else section.append(...made);
    section.hidden = false;
    main.append(section);
  }
  main.append(byId("numbers"));
  main.querySelector("details")?.setAttribute("open", "");
  if (grid.rows.length) byId("outcomes").hidden = false;
  setLabels(message.labels);
  byId("contents").replaceChildren(...[...main.children].filter((one) => !one.hidden).map((one) =>
    el("a", "", one.querySelector("h2").textContent, { href: `#${one.id}` })));
  if (hero) drawHero({ ...hero, body: [...shares(state.head), ...hero.body] });
  if (beside) {
    const script = el("script", "", [], { src: beside });
    script.onload = () => { list.begin(window.hocketColumns); show(); };
    script.onerror = () => { state.error = `${beside} is not beside this page: the table of episodes is in it.`; drawAlerts(); };
    document.head.append(script);
  } else if (columns) list.begin(columns);
  drawAll();
  // A link to an episode opens it.
  const show = () => {
    const cell = Number((/^#e(\d+)$/.exec(location.hash) || [])[1] ?? -1);
    if (cell >= 0 && cell < grid.cells && cell !== player.shown?.cell) open(cell);
  };
  addEventListener("hashchange", show);
  if (!beside) show();
}

/** How a pair ended, as a letter. */
function pairOf(a, b) {
  if (a === "." || b === ".") return ".";
  if (a === "E" || b === "E") return "e";
  return (a === "S") === (b === "S") ? (a === "S" ? "2" : "0") : a === "S" ? "a" : "b";
}

// -- the server -----------------------------------------------------------------------------------

function connect() {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  socket = new WebSocket(`${scheme}://${location.host}${home}live${runName ? `/${runName}` : ""}`);
  socket.binaryType = "arraybuffer";
  socket.onmessage = ({ data }) => (typeof data === "string" ? hear(JSON.parse(data)) : showPicture(data));
  socket.onopen = () => { silent = false; drawAlerts(); look(); };
  socket.onclose = () => { silent = true; drawAlerts(); setTimeout(connect, 1500); };
}

function hear(message) {
  const began = performance.now();
  if (message.kind === "runs") return drawRuns(message);
  if (["error", "refused"].includes(message.kind)) { state[message.kind] = message.text; return drawAlerts(); }
  if (message.kind === "episode") return showEpisode(message);
  if (message.kind === "snapshot") begin(message);
  else change(message);
  drawAll();
  requestAnimationFrame(() => requestAnimationFrame(() => { state.updateMs = performance.now() - began; }));
  state.received += 1;
}

function begin(message) {
  byId("kicker").textContent = `hocket watch · ${message.name}`;
  byId("title").textContent = message.title;
  document.title = `${message.title} · hocket`;
  Object.assign(state, { head: message.head, lanes: message.lanes, feed: message.feed, rates: message.rates || {} });
  if (message.plan) {
    byId("outcomes").hidden = byId("tasks").hidden = false;
    grid.plan(message.plan, message.outcomes);
  }
  setLabels(message.labels);
  setCurves(message.curves);
}

function change(message) {
  if (message.head) state.head = message.head;
  if (message.lanes) state.lanes = message.lanes;
  if (message.cells) grid.change(message.cells);
  if (message.rates) Object.assign(state.rates, message.rates);
  if (message.labels) setLabels(message.labels);
  if (message.curves) setCurves(message.curves);
  for (const item of message.feed || []) {
    const known = state.feed.findIndex((one) => one.cell === item.cell && one.attempt === item.attempt);
    state.feed[known >= 0 ? known : state.feed.length] = item;
  }
  state.feed = state.feed.slice(-40);
  const shown = player.shown;
  if (shown && (shown.outcome === "." || message.labels || (message.feed || []).some((one) => one.cell === shown.cell))) {
    say({ episode: shown.cell });
  }
}

function setCurves(curves) {
  if (!curves || !Object.keys(curves.points).length) return;
  byId("training").hidden = false;
  state.curves = curves;
  drawCurves(curves);
}

function setLabels(labels) {
  state.labels = labels || {};
  grid.labels = new Map(Object.entries(state.labels).map(([cell, text]) => [Number(cell), text]));
}

// -- what stands first ----------------------------------------------------------------------------

function drawHead() {
  const head = state.head, training = head.training;
  drawAlerts();
  if (embedded) return;
  const rate = head.rate || lastEvaluation(training), value = rate ? rate.value : null;
  byId("up").hidden = !runName;
  byId("up").href = home;
  byId("moving").hidden = false;
  const now = Date.now() / 1000, silentFor = head.at ? now - head.at : null;
  byId("pulse").className = `pulse${head.alive ? (silentFor > HANGS_S ? " stuck" : " live") : ""}`;
  byId("phase").textContent = head.phase || "no status yet";
  byId("ends").textContent = progress(head, training, now);
  byId("twin").replaceChildren(...twinNote(head.twin));
  drawHero({
    big: value === null ? ["-", ""] : [fixed(100 * value, 1), " %"], notes: [rateNote(rate, head)],
    body: [...shares(head), { draw: "tiles", entries: tiles(head, training) }],
  });
}

/** The figure that stands first, what is said of it, and what stands beside it. */
function drawHero({ big, notes, body, verdict }) {
  byId("hero").hidden = false;
  byId("verdict").replaceChildren(...(verdict || []).map((text, i) => el("p", i ? "verdict" : "big-note", text)));
  byId("rate").replaceChildren(big[0], el("small", "", big[1]));
  byId("rate-note").replaceChildren(...notes.map((text) => el("p", "big-note", words(text))));
  byId("figures").replaceChildren(...body.map(drawn));
}

/** A training run's rate is that of its last evaluation. */
function lastEvaluation(training) {
  const last = training && state.curves ? state.curves.evaluations.at(-1) : null;
  if (!last || last["eval/success"] === null || last["eval/success"] === undefined) return null;
  const low = last["eval/success_low"], high = last["eval/success_high"];
  return { value: last["eval/success"], interval: low === null ? null : [low, high], n: last.n, at: last.env_steps };
}

function rateNote(rate, head) {
  if (!rate || rate.value === null) {
    return [head.training ? "no evaluation has ended yet" : "no episode has been judged yet"];
  }
  if (rate.at !== undefined) {
    return [`success, evaluated at ${count(rate.at)} steps, 95 % interval `, { b: range(rate.interval) }, `, n = ${count(rate.n)}.`];
  }
  const isPartial = head.done < head.planned;
  return ["success", isPartial ? " so far" : "", ", 95 % interval ", { b: range(rate.interval) }, `, n = ${count(rate.n)}`,
    isPartial ? ". Trials that end early are no fair sample of all." : "."];
}

function twinNote(twin) {
  if (!twin) return [];
  const sign = twin.difference >= 0 ? "+" : "−", bounds = twin.interval;
  return ["against ", el("b", "", twin.name), ` on ${count(twin.n)} trials that both ended: `,
    el("b", "", `${sign}${fixed(Math.abs(100 * twin.difference), 1)} points`),
    bounds ? ` ${range(bounds)}` : "", ` (${percent(twin.mine)} and ${percent(twin.theirs)})`];
}

function progress(head, training, now) {
  if (training && training.steps) {
    const left = training.env_steps ? (training.wall_s / training.env_steps) * (training.steps - training.env_steps) : null;
    return `${count(training.env_steps)} of ${count(training.steps)} steps` + (head.alive && left !== null ? `, ${duration(left)} left, ends about ${clock(now + left)}` : "");
  }
  if (head.planned === undefined) return "";
  const text = `${count(head.done)} of ${count(head.planned)} episodes`;
  if (!head.alive) return text;
  if (head.phase === "filming") return `${text}; ${head.filmed[0]} of ${head.filmed[1]} are filmed`;
  const left = Math.max(0, head.left_s - (now - head.at));
  return head.left_s === null ? text : `${text}, ${duration(left)} left, ends about ${clock(now + left)}`;
}

function shares(head) {
  const training = head.training, parts = [];
  if (head.counts) {
    for (const letter of "SFDE") if (head.counts[letter]) parts.push([letter, head.counts[letter]]);
    if (head.planned > head.done) parts.push([".", head.planned - head.done]);
  } else if (training && training.steps) {
    parts.push(["D", training.env_steps], [".", Math.max(0, training.steps - training.env_steps)]);
  }
  const shown = parts.map(([letter, n]) => [KINDS[letter], NAMES[letter], n]).filter(([, , n]) => n > 0);
  const key = (head.counts ? shown : []).map(([kind, name, n]) => [kind, name, count(n)]);
  return shown.length ? [{ draw: "bar", parts: shown }, { draw: "legend", entries: key }] : [];
}

function tiles(head, training) {
  const speed = head.alive ? head.speed : null, sizes = head.batch_sizes || [], found = [];
  if (speed) {
    found.push(["speed", count(speed.steps_per_s), " env steps/s"]);
    found.push(["mean batch", speed.mean_batch === null ? "-" : speed.mean_batch.toFixed(1), ` of ${head.lane_count} lanes`]);
    if (sizes.length) found.push(["batches of", `${Math.min(...sizes)} to ${Math.max(...sizes)}`, " rows lately"]);
    found.push(["policy busy", percent(speed.policy_busy, 0).replace(" %", ""), " %"]);
    if (speed.cores_busy !== null) found.push(["cores busy", percent(speed.cores_busy, 0).replace(" %", ""), " %"]);
  }
  if (training) found.push(["updates", count(training.updates || 0), ""], ["trained for", duration(training.wall_s), ""]);
  else found.push(["errors", count(head.counts ? head.counts.E || 0 : 0), ""]);
  if (head.lost_attempts) found.push(["attempts lost", count(head.lost_attempts), ""]);
  return found;
}

function drawAlerts() {
  const head = state.head, alerts = [...(embedded ? state.alerts || [] : [])], add = (text, bad) => alerts.push({ words: [text], bad });
  const wrong = [silent && "The viewer does not answer; what is shown may be old.", state.error, state.refused];
  for (const text of wrong) if (text) add(text, true);
  if (state.bundled && state.bundled[0] < state.bundled[1]) add(`Of ${count(state.bundled[1])} films ${count(state.bundled[0])} are inside this page; the others are in the run's folder.`);
  if (head.phase === "stopped") add(`Stopped before its end. Finish it with: ${head.training ? "hocket train --resume" : "hocket resume"} and the run folder.`);
  for (const note of [...(head.notes || []), ...((state.curves || {}).warnings || [])]) add(note);
  const texts = JSON.stringify(alerts);
  if (texts === state.told) return;
  state.told = texts;
  byId("alerts").replaceChildren(...alerts.map((one) => el("p", one.bad ? "alert bad" : "alert", words(one.words))));
}

// -- outcomes, failures, tasks --------------------------------------------------------------------

function drawFilters() {
  const counts = state.head.counts || {}, kinds = new Map();
  for (const text of Object.values(state.labels)) kinds.set(text, (kinds.get(text) || 0) + 1);
  const stamp = JSON.stringify([counts, [...kinds], [...grid.hidden], grid.wantedLabel]);
  if (stamp === state.filters) return;
  state.filters = stamp;
  const chip = (parts, isOn, data, press) => {
    const made = el("button", data.label ? "label" : "", parts, { type: "button" });
    Object.assign(made.dataset, data);
    made.setAttribute("aria-pressed", String(isOn));
    made.addEventListener("click", () => { press(); drawAll(); });
    return made;
  };
  for (const place of document.querySelectorAll(".chips")) {
    const chips = [..."SFDE"].filter((letter) => counts[letter]).map((letter) =>
      chip([el("i", `swatch k-${KINDS[letter]}`), NAMES[letter]], grid.isShown(letter), { filter: NAMES[letter] }, () => grid.toggle(letter)));
    const labels = [...kinds].sort().map(([text, n]) => chip(`${text} · ${n}`, grid.wantedLabel === text, { label: text },
      () => { grid.wantedLabel = grid.wantedLabel === text ? null : text; }));
    place.replaceChildren(...chips, ...labels);
  }
}

const cards = new Map();
function drawFeed() {
  if (!embedded) byId("videos").hidden = !state.feed.length;
  else state.feed = state.feed.map((item) => ({ ...list.episode(item.cell), trial: grid.id(item.cell), ...item }));
  const wanted = [...state.feed].reverse().filter((item) => item.outcome === "L" || !grid.isHidden(item.cell)).slice(0, embedded ? undefined : CARDS);
  const kept = wanted.map((item) => {
    const key = `${item.cell}/${item.attempt}`, stamp = JSON.stringify([item.outcome, item.films, item.error, item.steps, state.labels[item.cell]]);
    const known = cards.get(key);
    if (known && known.stamp === stamp) return known.card;
    const card = makeCard(item);
    cards.set(key, { stamp, card });
    return card;
  });
  const box = byId("feed");
  // A card that stays is not moved: its player would begin anew.
  kept.forEach((card, i) => { if (box.children[i] !== card) box.insertBefore(card, box.children[i] || null); });
  while (box.children.length > kept.length) box.lastChild.remove();
}

function makeCard(item) {
  const label = state.labels[item.cell];
  const screens = item.films.slice(0, embedded ? undefined : 1).map((name, i) => el("video", "", [], { muted: true, playsInline: true, title: cameraOf(name),
    preload: embedded ? "none" : "metadata", poster: (item.posters || [])[i] || "", src: `${address(item.cell, item.attempt, name)}${embedded ? "" : "#t=0.1"}` }));
  const told = item.outcome === "L" ? `attempt ${item.attempt + 1} lost` : NAMES[item.outcome];
  const card = el("button", "card", [...(screens.length ? screens : [el("span", "none", item.error || "no video")]), el("span", "what", breakable(item.trial)),
    el("span", "sub", [el("span", `badge k-${KINDS[item.outcome]}`, told), item.steps ? ` · ${count(item.steps)} steps` : "", label ? ` · ${label}` : ""])],
    { type: "button" });
  card.dataset.cell = item.cell;
  card.addEventListener("click", () => open(item.cell));
  return card;
}

function drawTasks() {
  if (embedded || !grid.tasks) return;
  const stamp = JSON.stringify([grid.tasks.length, state.rates]);
  if (stamp === state.taskStamp) return;
  state.taskStamp = stamp;
  const named = grid.tasks.slice(0, MOST_TASKS).map((_, task) => {
    const { n, value, interval, errors } = state.rates[task] || { n: 0, value: null, interval: null };
    return [grid.name(task), { n, rate: value, interval, errors, finished: 0 }, false];
  });
  byId("task-list").replaceChildren(drawn({ draw: "scores", named, judged: true }));
}

// -- lanes ----------------------------------------------------------------------------------------

function drawLanes() {
  const lanes = state.lanes, now = Date.now() / 1000;
  const hung = (lane) => (now - lane.since > HANGS_S ? now - lane.since : 0);
  byId("lanes").hidden = !lanes.length;
  grid.running = new Set(lanes.filter((lane) => lane.cell !== undefined).map((lane) => lane.cell));
  if (state.auto && lanes.length) state.looked = new Set([...lanes].sort((a, b) => a.lane - b.lane).slice(0, 4).map((lane) => lane.lane));
  const shown = [...lanes].filter((lane) => lane.state !== "free").sort((a, b) => hung(b) - hung(a) || a.lane - b.lane).slice(0, MOST_LANES);
  byId("lane-list").replaceChildren(...shown.map((lane) => {
    const age = Math.max(0, now - lane.since), steps = (lane.borders || []).at(-1) || 0;
    const pick = el("button", "", "look", { type: "button" });
    pick.dataset.lane = lane.lane;
    pick.setAttribute("aria-pressed", String(state.looked.has(lane.lane)));
    pick.addEventListener("click", () => toggleLook(lane.lane));
    const trial = lane.cell === undefined || lane.cell === null ? el("span", "", lane.trial || "")
      : el("a", "", lane.trial, { href: `#${lane.lane}` });
    if (trial.href) trial.addEventListener("click", (event) => { event.preventDefault(); open(lane.cell); });
    return el("tr", "", [el("td", "", `lane ${lane.lane}`), el("td", "", lane.state === "waiting" ? "waiting for a chunk" : lane.state),
      el("td", age > HANGS_S ? "n hangs" : "n", duration(age)), el("td", "", trial), el("td", "n", count(steps)), el("td", "", pick)]);
  }));
  for (const figure of [...byId("pictures").children]) if (!state.looked.has(Number(figure.dataset.lane))) figure.remove();
}

function toggleLook(lane) {
  state.auto = false;
  if (!state.looked.delete(lane) && state.looked.size < MOST_LOOKED) state.looked.add(lane);
  drawLanes();
  look();
}

/** Tell the server which lanes are looked at; said again before it forgets. */
function look() {
  if (state.lanes.length && !document.hidden) say({ look: [...state.looked] });
}

function showPicture(data) {
  const lane = new DataView(data).getUint32(0), box = byId("pictures");
  if (!state.looked.has(lane)) return;
  let figure = [...box.children].find((one) => Number(one.dataset.lane) === lane);
  if (!figure) {
    figure = el("figure", "card", [el("img", "", [], { alt: `What lane ${lane} showed the policy last` }), el("figcaption", "", `lane ${lane}`)]);
    figure.dataset.lane = lane;
    box.append(figure);
  }
  const image = figure.firstChild, old = image.src;
  image.src = URL.createObjectURL(new Blob([data.slice(4)], { type: "image/jpeg" }));
  if (old) URL.revokeObjectURL(old);
  state.pictures = (state.pictures || 0) + 1;
}

// -- one episode, keys ----------------------------------------------------------------------------

function showEpisode(found) {
  if (found.cell !== grid.chosen) return;
  player.show(found, `${grid.name(grid.task(found.cell))}, seed ${grid.seed(found.cell)}`);
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
  if (event.key === "j" || event.key === "k") {
    const cell = grid.cells ? grid.step(event.key === "j" ? 1 : -1) : -1;
    if (cell >= 0) open(cell);
  } else if (player.isOpen && player.key(event.key)) event.preventDefault();
});

// -- many runs ------------------------------------------------------------------------------------

function drawRuns(message) {
  byId("kicker").textContent = "hocket watch";
  byId("title").textContent = message.name;
  document.title = `${message.name} · hocket`;
  byId("runs").hidden = false;
  byId("run-list").replaceChildren(...message.runs.map((run) => {
    const training = run.training, evaluated = (run.evaluations || [])[0];
    const far = training ? `${count(training.env_steps)} / ${count(training.steps)} steps` : `${count(run.done || 0)} / ${count(run.planned || 0)}`;
    const judged = run.rate && run.rate.value !== null, told = evaluated && evaluated["eval/success"] !== null;
    const success = judged ? `${percent(run.rate.value)} ${range(run.rate.interval)}` : told ? `${percent(evaluated["eval/success"])} evaluated` : "-";
    const is_done = training ? training.env_steps >= training.steps : run.done === run.planned;
    const words = run.error ? "cannot be read" : run.alive ? `running${run.left_s ? `, ${duration(run.left_s)} left` : ""}` : is_done ? "done" : "stopped";
    const pulse = el("span", `pulse${run.alive ? " live" : ""}`);
    return el("tr", "", [el("td", "", el("a", "", run.name, { href: `${home}run/${encodeURI(run.name)}` })),
      el("td", "", [pulse, words], { title: run.error || "" }), el("td", "n", far), el("td", "", success), el("td", "n", count(run.errors || 0)),
      el("td", "", run.policy || ""), el("td", "", run.env || "")]);
  }));
  if (!message.runs.length) byId("run-list").replaceChildren(el("tr", "", el("td", "", "There is no run here yet.", { colSpan: 7 })));
}

window.hocket = { state, grid, player, list, open, niceCeiling, fixed };
addEventListener("resize", () => state.curves && drawCurves(state.curves));
if (embedded) fill(JSON.parse(embedded.textContent));
else {
  byId("numbers").hidden = true;
  setInterval(look, 2000);
  setInterval(() => { if (state.head.alive) { drawHead(); drawLanes(); } }, 1000);
  connect();
}
