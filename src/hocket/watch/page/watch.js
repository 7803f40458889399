// The page: takes a snapshot and changes from the server, and keeps what is shown true.
import { drawCurves } from "./curves.js";
import { Grid } from "./grid.js";
import { Player } from "./player.js";
import { byId, clock, count, duration, el, KINDS, NAMES, percent, range, soon } from "./text.js";

const [, token, kind, ...rest] = location.pathname.split("/");
const home = `/${token}/`, runName = kind === "run" ? rest.join("/").replace(/\/$/, "") : "";
const HANGS_S = 30, CARDS = 12, MOST_LANES = 60, MOST_LOOKED = 8;
const state = { head: {}, lanes: [], feed: [], rates: {}, labels: {}, looked: new Set(), auto: true, received: 0 };
let socket = null, silent = false;

const film = (cell, attempt, name) =>
  `${home}film/${runName ? encodeURI(runName) : ""}/${cell}/${attempt}/${encodeURIComponent(name)}`;
const say = (message) => socket && socket.readyState === 1 && socket.send(JSON.stringify(message));
const open = (cell) => { grid.chosen = cell; grid.draw(); say({ episode: cell }); };
const grid = new Grid(open);
const player = new Player(film, (cell, label) => say({ cell, label }), (cell) => say({ episode: cell }));
const drawAll = soon(() => { drawHead(); drawFilters(); drawFeed(); drawTasks(); drawLanes(); grid.draw(); });

// -- the server -----------------------------------------------------------------------------------

function connect() {
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  socket = new WebSocket(`${scheme}://${location.host}${home}live${runName ? `/${runName}` : ""}`);
  socket.binaryType = "arraybuffer";
  socket.onmessage = ({ data }) => (typeof data === "string" ? hear(JSON.parse(data)) : picture(data));
  socket.onopen = () => { silent = false; drawAlerts(); look(); };
  socket.onclose = () => { silent = true; drawAlerts(); setTimeout(connect, 1500); };
}

function hear(message) {
  const began = performance.now();
  if (message.kind === "runs") return drawRuns(message);
  if (message.kind === "error") { state.error = message.text; return drawAlerts(); }
  if (message.kind === "refused") { state.refused = message.text; return drawAlerts(); }
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
    if (known >= 0) state.feed[known] = item;
    else state.feed.push(item);
  }
  state.feed = state.feed.slice(-40);
  const shown = player.shown;
  if (shown && (shown.outcome === "." || message.labels || (message.feed || []).some((one) => one.cell === shown.cell))) {
    say({ episode: shown.cell });
  }
}

function setCurves(curves) {
  const some = curves && Object.keys(curves.points).length > 0;
  if (!some) return;
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
  const rate = head.rate || lastEvaluation(training);
  byId("hero").hidden = false;
  byId("up").hidden = !runName;
  byId("up").href = home;
  const value = rate ? rate.value : null;
  byId("rate").replaceChildren(value === null ? "-" : (100 * value).toFixed(1), value === null ? "" : el("small", "", " %"));
  byId("rate-note").replaceChildren(...rateNote(rate, head));
  byId("twin").replaceChildren(...twinNote(head.twin));
  const now = Date.now() / 1000, silentFor = head.at ? now - head.at : null;
  byId("pulse").className = `pulse${head.alive ? (silentFor > HANGS_S ? " stuck" : " live") : ""}`;
  byId("phase").textContent = head.phase || "no status yet";
  byId("ends").textContent = progress(head, training, now);
  drawShares(head);
  drawTiles(head, training);
  drawAlerts();
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
    return [`success, evaluated at ${count(rate.at)} steps, 95 % interval `, el("b", "", range(rate.interval)), `, n = ${count(rate.n)}.`];
  }
  const isPartial = head.done < head.planned;
  return ["success", isPartial ? " so far" : "", ", 95 % interval ", el("b", "", range(rate.interval)), `, n = ${count(rate.n)}`,
    isPartial ? ". Trials that end early are no fair sample of all." : "."];
}

function twinNote(twin) {
  if (!twin) return [];
  const sign = twin.difference >= 0 ? "+" : "−", bounds = twin.interval;
  return ["against ", el("b", "", twin.name), ` on ${count(twin.n)} trials that both ended: `,
    el("b", "", `${sign}${Math.abs(100 * twin.difference).toFixed(1)} points`),
    bounds ? ` ${range(bounds)}` : "", ` (${percent(twin.mine)} and ${percent(twin.theirs)})`];
}

function progress(head, training, now) {
  if (training && training.steps) {
    const left = training.env_steps ? (training.wall_s / training.env_steps) * (training.steps - training.env_steps) : null;
    return `${count(training.env_steps)} of ${count(training.steps)} steps` + (head.alive && left !== null ? `, ${duration(left)} left, ends about ${clock(now + left)}` : "");
  }
  if (head.planned === undefined) return "";
  let text = `${count(head.done)} of ${count(head.planned)} episodes`;
  if (!head.alive) return text;
  if (head.phase === "filming") return `${text}; ${head.filmed[0]} of ${head.filmed[1]} are filmed`;
  if (head.left_s !== null) {
    const left = Math.max(0, head.left_s - (now - head.at));
    text += `, ${duration(left)} left, ends about ${clock(now + left)}`;
  }
  return text;
}

function drawShares(head) {
  const training = head.training, parts = [];
  if (head.counts) {
    for (const letter of "SFDE") if (head.counts[letter]) parts.push([letter, head.counts[letter]]);
    if (head.planned > head.done) parts.push([".", head.planned - head.done]);
  } else if (training && training.steps) {
    parts.push(["D", training.env_steps], [".", Math.max(0, training.steps - training.env_steps)]);
  }
  const bars = parts.filter(([, n]) => n > 0).map(([letter, n]) => {
    const bar = el("i", `k-${KINDS[letter]}`, [], { title: `${NAMES[letter]}: ${count(n)}` });
    bar.style.flexGrow = n;
    return bar;
  });
  byId("shares").replaceChildren(...bars);
  byId("shares").setAttribute("aria-label", parts.map(([letter, n]) => `${NAMES[letter]} ${n}`).join(", "));
  byId("legend").replaceChildren(...(head.counts ? parts : []).map(([letter, n]) =>
    el("li", "", [el("i", `swatch k-${KINDS[letter]}`), `${NAMES[letter]} `, el("b", "", count(n))])));
}

function drawTiles(head, training) {
  const speed = head.alive ? head.speed : null, sizes = head.batch_sizes || [];
  const tiles = [];
  if (speed) {
    tiles.push(["speed", count(speed.steps_per_s), " env steps/s"]);
    tiles.push(["mean batch", speed.mean_batch === null ? "-" : speed.mean_batch.toFixed(1), ` of ${head.lane_count} lanes`]);
    if (sizes.length) tiles.push(["batches of", `${Math.min(...sizes)} to ${Math.max(...sizes)}`, " rows lately"]);
    tiles.push(["policy busy", percent(speed.policy_busy, 0).replace(" %", ""), " %"]);
    tiles.push(["cores busy", percent(speed.cores_busy, 0).replace(" %", ""), ` % of ${head.cores}`]);
  }
  if (training) {
    tiles.push(["updates", count(training.updates || 0), ""]);
    tiles.push(["trained for", duration(training.wall_s), ""]);
  } else {
    tiles.push(["errors", count(head.counts ? head.counts.E || 0 : 0), ""]);
  }
  if (head.lost_attempts) tiles.push(["attempts lost", count(head.lost_attempts), ""]);
  byId("tiles").replaceChildren(...tiles.map(([name, figure, unit]) =>
    el("div", "", [el("dt", "", name), el("dd", "", [figure, el("small", "", unit)])])));
}

function drawAlerts() {
  const head = state.head, alerts = [];
  if (silent) alerts.push(["The viewer does not answer; what is shown may be old.", "bad"]);
  if (state.error) alerts.push([state.error, "bad"]);
  if (state.refused) alerts.push([state.refused, "bad"]);
  if (head.phase === "stopped") alerts.push([`Stopped before its end. Finish it with: ${head.training ? "hocket train --resume" : "hocket resume"} and the run folder.`, ""]);
  for (const note of [...(head.notes || []), ...((state.curves || {}).warnings || [])]) alerts.push([note, ""]);
  const texts = JSON.stringify(alerts);
  if (texts === state.alerts) return;
  state.alerts = texts;
  byId("alerts").replaceChildren(...alerts.map(([text, bad]) => el("p", `alert ${bad}`, text)));
}

// -- outcomes, failures, tasks --------------------------------------------------------------------

function drawFilters() {
  const counts = state.head.counts || {}, kinds = new Map();
  for (const text of Object.values(state.labels)) kinds.set(text, (kinds.get(text) || 0) + 1);
  const stamp = JSON.stringify([counts, [...kinds], [...grid.hidden], grid.wantedLabel]);
  if (stamp === state.filters) return;
  state.filters = stamp;
  const chips = [..."SFDE"].filter((letter) => counts[letter]).map((letter) => {
    const chip = el("button", "", [el("i", `swatch k-${KINDS[letter]}`), NAMES[letter]], { type: "button" });
    chip.setAttribute("aria-pressed", String(!grid.hidden.has(letter)));
    chip.addEventListener("click", () => { grid.hidden.delete(letter) || grid.hidden.add(letter); drawAll(); });
    return chip;
  });
  const labels = [...kinds].sort().map(([text, n]) => {
    const chip = el("button", "label", `${text} · ${n}`, { type: "button" });
    chip.dataset.label = text;
    chip.setAttribute("aria-pressed", String(grid.wantedLabel === text));
    chip.addEventListener("click", () => { grid.wantedLabel = grid.wantedLabel === text ? null : text; drawAll(); });
    return chip;
  });
  byId("filters").replaceChildren(...chips, ...labels);
}

const cards = new Map();
function drawFeed() {
  byId("failures").hidden = !state.feed.length;
  const wanted = [...state.feed].reverse().filter((item) => item.outcome === "L" || !grid.isHidden(item.cell)).slice(0, CARDS);
  const kept = wanted.map((item) => {
    const key = `${item.cell}/${item.attempt}`, stamp = JSON.stringify([item, state.labels[item.cell]]);
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
  const screen = item.films.length
    ? el("video", "", [], { src: `${film(item.cell, item.attempt, item.films[0])}#t=0.1`, muted: true, preload: "metadata", playsInline: true })
    : el("span", "none", item.error || (state.head.alive ? "no video yet" : "no video"));
  const words = item.outcome === "L" ? `attempt ${item.attempt + 1} lost` : NAMES[item.outcome];
  const card = el("button", "card", [screen, el("span", "what", item.trial),
    el("span", "sub", [el("span", `badge k-${KINDS[item.outcome]}`, words), item.steps ? ` · ${count(item.steps)} steps` : "", label ? ` · ${label}` : ""])],
    { type: "button" });
  card.dataset.cell = item.cell;
  card.addEventListener("click", () => open(item.cell));
  return card;
}

function drawTasks() {
  if (!grid.tasks) return;
  const stamp = JSON.stringify([grid.tasks.length, state.rates]);
  if (stamp === state.taskStamp) return;
  state.taskStamp = stamp;
  const rows = grid.tasks.slice(0, 120).map((_, task) => {
    const rate = state.rates[task] || { n: 0, value: null };
    const track = el("div", "ic-track");
    if (rate.value !== null) {
      const bar = el("i"), dot = el("u");
      bar.style.left = `${100 * rate.interval[0]}%`;
      bar.style.width = `${100 * (rate.interval[1] - rate.interval[0])}%`;
      dot.style.left = `${100 * rate.value}%`;
      track.append(bar, dot);
    }
    const name = grid.name(task);
    return el("div", "ic-row", [el("div", "ic-label", name, { title: name }), track,
      el("div", "ic-value", [el("b", "", percent(rate.value)), el("span", "", range(rate.interval)),
        el("span", "", `n = ${count(rate.n)}${rate.errors ? `, ${rate.errors} err` : ""}`)])]);
  });
  byId("task-list").replaceChildren(...rows);
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
  const box = byId("pictures");
  for (const figure of [...box.children]) if (!state.looked.has(Number(figure.dataset.lane))) figure.remove();
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

function picture(data) {
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
    let success = "-";
    if (run.rate && run.rate.value !== null) success = `${percent(run.rate.value)} ${range(run.rate.interval)}`;
    else if (evaluated && evaluated["eval/success"] !== null) success = `${percent(evaluated["eval/success"])} evaluated`;
    const is_done = training ? training.env_steps >= training.steps : run.done === run.planned;
    const words = run.error ? "cannot be read" : run.alive ? `running${run.left_s ? `, ${duration(run.left_s)} left` : ""}` : is_done ? "done" : "stopped";
    const pulse = el("span", `pulse${run.alive ? " live" : ""}`);
    pulse.style.display = "inline-block";
    pulse.style.marginRight = "7px";
    return el("tr", "", [el("td", "", el("a", "", run.name, { href: `${home}run/${encodeURI(run.name)}` })),
      el("td", "", [pulse, words], { title: run.error || "" }), el("td", "n", far), el("td", "", success), el("td", "n", count(run.errors || 0)),
      el("td", "", run.policy || ""), el("td", "", run.env || "")]);
  }));
  if (!message.runs.length) byId("run-list").replaceChildren(el("tr", "", el("td", "", "There is no run here yet.", { colSpan: 7 })));
}

setInterval(look, 2000);
setInterval(() => { if (state.head.alive) { drawHead(); drawLanes(); } }, 1000);
addEventListener("resize", () => state.curves && drawCurves(state.curves));
window.hocket = { state, grid, player, open };
connect();
