// The page: takes what it is told, all at once or as it changes, and keeps what is shown true.
const embedded = byId("data");
const [, token, kind, ...rest] = embedded ? [] : location.pathname.split("/");
const home = `/${token}/`, runName = kind === "run" ? decodeURIComponent(rest.join("/").replace(/\/$/, "")) : "";
const state = { head: {}, lanes: [], feed: [], films: {}, rates: {}, labels: {}, looked: new Set(), auto: true, received: 0, wanted: {} };
let socket = null, silent = false;

/** A film's address: by cell and camera of a viewer, or a link beside the page, or what is inside it. */
const address = (cell, attempt, name) => (embedded ? inside(name)
  : `${home}film/${runName ? runName.split("/").map(encodeURIComponent).join("/") : ""}/${cell}/${attempt}/${encodeURIComponent(decodeURIComponent(name.split("/").pop()))}`);
const inside = (link) => (state.inside || {})[link] || link;
const say = (message) => socket && socket.readyState === 1 && socket.send(JSON.stringify(message));
const grid = new Grid(open);
const list = new EpisodeList(grid, state, open);
const player = new Player({ film: address, label: embedded ? null : (cell, label) => say({ cell, label }), moved: remember,
  ask: (cell, attempt) => open(cell, attempt) });
const drawAll = soon(() => { drawHead(); drawFilters(); drawFeed(); drawTasks(); drawLanes(); list.filter(); grid.paint(); });

/** Show an episode or an attempt that was lost, from a second on: what is here of it, or what the viewer answers. */
function open(cell, attempt = null, at = null) {
  grid.chosen = cell;
  grid.draw();
  state.wanted = { cell, at };
  if (state.pairs) { if (state.pairs[cell]) player.show({ cell, outcome: grid.letter(cell), verdict: grid.told(cell), sides: state.pairs[cell].map((one) => ({ ...one, look: understood(one.look) })) }, nameOf(cell), at); }
  else if (embedded) showEpisode(list.episode(cell, attempt));
  else say({ episode: cell, attempt });
}

const nameOf = (cell) => `${grid.name(grid.task(cell))}, seed ${grid.seed(cell)}`;

function showEpisode(found) {
  if (found.cell !== grid.chosen) return;
  const isNew = state.wanted.cell === found.cell;
  player.show(found, nameOf(found.cell), isNew ? state.wanted.at : null);
  state.wanted = {};
  const key = keyOf(found);
  if (player.looks.has(key) || found.outcome === ".") return;
  if (!embedded) say({ inside: found.cell, attempt: found.attempt || 0 });
  else if ((state.looks || []).includes(key)) beside(`${state.looksAt}/${key}.js`, () => {});
}

/** Keep in the address what is looked at, and where. */
function remember(found, seconds) {
  const attempt = found?.outcome === "L" ? `a${found.attempt + 1}` : "";
  const hash = found ? `#e${found.cell}${attempt}${seconds > 0 ? `@${fixed(seconds, 2).replace(/\.?0+$/, "")}` : ""}` : "#";
  if (location.hash !== hash && !(hash === "#" && !location.hash)) history.replaceState(null, "", hash);
}

/** Open what the address says: `#e12`, `#e12@3.4` from a second on, `#e12a1` an attempt that was lost. */
function follow() {
  const [, cell, attempt, at] = /^#e(\d+)(?:a(\d+))?(?:@([\d.]+))?$/.exec(location.hash) || [];
  if (cell === undefined || Number(cell) >= grid.cells) return;
  open(Number(cell), attempt ? attempt - 1 : null, at === undefined ? null : Number(at));
}

/** A script with data that lies beside the page: Chromium fetches nothing else from a disk. */
function beside(name, done) {
  const script = el("script", "", [], { src: name });
  script.onload = done;
  script.onerror = () => { state.error = `${name} is not beside this page: more of its episodes is in it.`; drawAlerts(); };
  document.head.append(script);
}
window.hocketLook = (key, look) => player.inside(key, look);

// -- what is inside the page ----------------------------------------------------------------------

function fill(message) {
  const { hero, columns, beside: more, insides, ...rest } = message;
  Object.assign(state, rest);
  if (message.sides) {
    message.outcomes = [...message.sides[0]].map((a, cell) => pairOf(a, message.sides[1][cell]));
    grid.told = (cell) => message.sides.map((side, i) => `${"ab"[i]} ${NAMES[side[cell]]}`).join(", ");
  }
  if (message.plan) grid.plan(message.plan, message.outcomes);
  for (const [key, look] of Object.entries(insides || {})) player.inside(key, look);
  fillSections(message.sections);
  setLabels(message.labels);
  if (hero) drawHero({ ...hero, body: [...shares(state.head), ...hero.body] });
  if (more) beside(more, () => { list.begin(window.hocketColumns); follow(); });
  else if (columns) list.begin(columns);
  drawAll();
  if (!more) follow();
}

/** Parts of the page: those that the shell has are filled, others are made; told again, they are filled anew. */
function fillSections(sections) {
  const main = byId("main");
  for (const { id, title, lead, body } of sections) {
    const made = body.map(drawn), known = byId(id);
    const section = known || el("section", "", [el("h2"), el("p", "lead")], { id });
    for (const old of section.filled || []) old.remove();
    section.filled = made;
    section.querySelector("h2").textContent = title;
    if (lead) section.querySelector(".lead").replaceChildren(...words(lead));
    else section.querySelector(".lead")?.replaceChildren();
    if (known && id === "videos") byId("feed").before(...made);
    else section.append(...made);
    section.hidden = false;
    main.append(section);
  }
  main.append(byId("numbers"));
  main.querySelector("#errors details")?.setAttribute("open", "");
  if (grid.rows.length) byId("outcomes").hidden = false;
  byId("contents").replaceChildren(...[...main.children].filter((one) => !one.hidden).map((one) =>
    el("a", "", one.querySelector("h2").textContent, { href: `#${one.id}` })));
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
  socket = new WebSocket(`${scheme}://${location.host}${home}live${runName ? `/${runName.split("/").map(encodeURIComponent).join("/")}` : ""}`);
  socket.binaryType = "arraybuffer";
  socket.onmessage = ({ data }) => (typeof data === "string" ? hear(JSON.parse(data)) : showPicture(data));
  socket.onopen = () => { silent = false; drawAlerts(); look(); };
  socket.onclose = () => { silent = true; drawAlerts(); setTimeout(connect, 1500); };
}

const HEARD = {
  runs: (message) => runs.hear(message),
  compared: (message) => runs.compared(message),
  against: (message) => runs.against(message),
  error: (message) => { state.error = message.text; drawAlerts(); },
  refused: (message) => { state.refused = message.text; drawAlerts(); },
  episode: showEpisode,
  inside: ({ key, look }) => player.inside(key, look),
  report: showReport,
};

function hear(message) {
  if (HEARD[message.kind]) return HEARD[message.kind](message);
  const began = performance.now();
  if (message.kind === "snapshot") begin(message);
  else change(message);
  drawAll();
  // Who looks at a run that has ended sees all that its report has.
  if (state.head.alive === false && grid.cells && state.reported !== state.head.done) { state.reported = state.head.done; say({ report: true }); }
  requestAnimationFrame(() => requestAnimationFrame(() => { state.updateMs = performance.now() - began; }));
  state.received += 1;
}

function begin(message) {
  byId("kicker").textContent = `hocket watch · ${message.name}`;
  byId("title").textContent = message.title;
  document.title = `${message.title} · hocket`;
  const isFirst = !grid.cells;
  Object.assign(state, { head: message.head, lanes: message.lanes, feed: message.feed, rates: message.rates || {}, reported: null });
  if (message.plan) {
    byId("outcomes").hidden = byId("tasks").hidden = false;
    grid.plan(message.plan, message.outcomes);
  }
  setLabels(message.labels);
  setCurves(message.curves);
  if (isFirst) follow();
}

function showReport({ report }) {
  byId("tasks").hidden = true;
  state.films = Object.fromEntries(Object.entries(report.films));
  Object.assign(state, { alerts: report.alerts, diverged: report.diverged, errors: report.errors });
  fillSections(report.sections.filter((one) => one.id !== "videos"));
  list.begin(report.columns);
  drawAll();
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
  while (state.feed.length > 80) state.feed.splice(Math.max(0, state.feed.findIndex((one) => !one.films.length)), 1);
  const shown = player.shown;
  if (shown && (shown.outcome === "." || message.labels || (message.feed || []).some((one) => one.cell === shown.cell))) {
    say({ episode: shown.cell, attempt: shown.outcome === "." ? null : shown.attempt });
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

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
  if (event.key === "j" || event.key === "k") {
    const cell = grid.cells ? grid.step(event.key === "j" ? 1 : -1) : -1;
    if (cell >= 0) open(cell);
  } else if (player.isOpen && player.key(event.key)) event.preventDefault();
});
addEventListener("hashchange", follow);

const runs = new Runs();
window.hocket = { state, grid, player, list, runs, open, niceCeiling, fixed };
addEventListener("resize", () => state.curves && drawCurves(state.curves));
if (embedded) fill(JSON.parse(embedded.textContent));
else {
  byId("numbers").hidden = true;
  setInterval(look, 2000);
  setInterval(() => { if (state.head.alive) { drawHead(); drawLanes(); } }, 1000);
  connect();
}
