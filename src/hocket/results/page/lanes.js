// What each lane does, and what it showed the policy last.
const HANGS_S = 30, MOST_LANES = 60, MOST_LOOKED = 8;

function drawLanes() {
  const lanes = state.lanes, now = Date.now() / 1000;
  const hung = (lane) => (now - lane.since > HANGS_S ? now - lane.since : 0);
  byId("lanes").hidden = !lanes.length;
  grid.running = new Set(lanes.filter((lane) => lane.cell !== undefined).map((lane) => lane.cell));
  if (state.auto && lanes.length) state.looked = new Set([...lanes].sort((a, b) => a.lane - b.lane).slice(0, 4).map((lane) => lane.lane));
  const shown = [...lanes].filter((lane) => lane.state !== "free").sort((a, b) => hung(b) - hung(a) || a.lane - b.lane).slice(0, MOST_LANES);
  const held = document.activeElement?.dataset.key;
  byId("lane-list").replaceChildren(...shown.map((lane) => {
    const age = Math.max(0, now - lane.since), steps = (lane.borders || []).at(-1) || 0;
    const pick = el("button", "", "look", { type: "button" });
    Object.assign(pick.dataset, { lane: lane.lane, key: `look ${lane.lane}` });
    pick.setAttribute("aria-pressed", String(state.looked.has(lane.lane)));
    pick.addEventListener("click", () => toggleLook(lane.lane));
    const trial = lane.cell === undefined || lane.cell === null ? el("span", "", lane.trial || "")
      : el("a", "", lane.trial, { href: `#${lane.lane}` });
    trial.dataset.key = `trial ${lane.lane}`;
    if (trial.href) trial.addEventListener("click", (event) => { event.preventDefault(); open(lane.cell); });
    return el("tr", "", [el("td", "", `lane ${lane.lane}`), el("td", "", lane.state === "waiting" ? "waiting for a chunk" : lane.state),
      el("td", age > HANGS_S ? "n hangs" : "n", duration(age)), el("td", "", trial), el("td", "n", count(steps)), el("td", "", pick)]);
  }));
  if (held) document.querySelector(`#lane-list [data-key="${held}"]`)?.focus({ preventScroll: true });
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
    // In the order of lanes, whichever picture came first.
    box.insertBefore(figure, [...box.children].find((one) => Number(one.dataset.lane) > lane) || null);
  }
  const image = figure.firstChild, old = image.src;
  image.src = URL.createObjectURL(new Blob([data.slice(4)], { type: "image/jpeg" }));
  if (old) URL.revokeObjectURL(old);
  state.pictures = (state.pictures || 0) + 1;
}
