// Outcomes as chips, failures with their films, and success per task.
const MANY_CARDS = 24;

/** A chip for each outcome and label, and in words what they leave. The first choice is "only this", others are added to it. */
function drawFilters() {
  const counts = state.head.counts || {}, kinds = new Map(), letters = [..."SFDE"].filter((letter) => counts[letter]);
  for (const text of Object.values(state.labels)) kinds.set(text, (kinds.get(text) || 0) + 1);
  const stamp = JSON.stringify([counts, [...kinds], [...grid.hidden], grid.wantedLabel]);
  if (stamp === state.filters) return;
  state.filters = stamp;
  const shown = letters.filter((letter) => grid.isShown(letter)), isAll = shown.length === letters.length;
  const chip = (parts, isOn, data, press) => {
    const made = el("button", data.label ? "label" : "", parts, { type: "button" });
    Object.assign(made.dataset, data);
    made.setAttribute("aria-pressed", String(isOn));
    made.addEventListener("click", () => {
      const [name, value] = Object.entries(data)[0];
      press();
      drawAll();
      drawFilters();
      // It was made anew: who came by keyboard stays where they were.
      [...made.place.children].find((one) => one.dataset[name] === value)?.focus({ preventScroll: true });
    });
    return made;
  };
  const choose = (letter) => {
    if (isAll) for (const other of letters) { if (other !== letter) grid.toggle(other); }
    else grid.toggle(letter);
    if (!letters.some((one) => grid.isShown(one))) grid.hidden.clear();
  };
  const plural = (letter) => ({ S: "successes", F: "failures", D: "finished ones", E: "errors" }[letter]);
  const some = shown.reduce((sum, letter) => sum + counts[letter], 0), all = letters.reduce((sum, letter) => sum + counts[letter], 0);
  const told = isAll ? "" : `only ${shown.map(plural).join(" and ")}: ${count(some)} of ${count(all)}`;
  const label = grid.wantedLabel === null ? "" : `only “${grid.wantedLabel}”`;
  for (const place of document.querySelectorAll(".chips")) {
    const chips = letters.map((letter) => chip([el("i", `swatch k-${KINDS[letter]}`), `${NAMES[letter]} `, el("b", "", count(counts[letter]))],
      !isAll && grid.isShown(letter), { filter: NAMES[letter] }, () => choose(letter)));
    const labels = [...kinds].sort().map(([text, n]) => chip(`${text} · ${n}`, grid.wantedLabel === text, { label: text },
      () => { grid.wantedLabel = grid.wantedLabel === text ? null : text; }));
    place.replaceChildren(...chips, ...labels, el("output", "only", [told, label].filter((text) => text).join(", ")));
    for (const one of [...chips, ...labels]) one.place = place;
  }
}

const cards = new Map();
function drawFeed() {
  if (!embedded) byId("videos").hidden = !state.feed.length;
  else state.feed = state.feed.map((item) => ({ ...list.episode(item.cell), trial: grid.id(item.cell), ...item }));
  const passed = [...state.feed].reverse().filter((item) => (item.outcome === "L" ? grid.isShown("E") : !grid.isHidden(item.cell)));
  // Those that one can look at stay in sight, however many come after them.
  const wanted = embedded ? passed : [...passed.filter((item) => item.films.length), ...passed.filter((item) => !item.films.length)].slice(0, MANY_CARDS);
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
  card.addEventListener("click", () => open(item.cell, item.outcome === "L" ? item.attempt : null));
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
