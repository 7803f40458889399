// What is worked out of a run's numbers: scores, lengths, labels, settings.
const MOST_TASKS = 120;

/** The smallest of 1, 2, 2.5 or 5 times a power of ten that is not below a value. */
function niceCeiling(value) {
  if (!(value > 0) || !isFinite(value)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value * 0.9999);
}

/** A score as a row of a chart: its success rate, or its mean return where no success is judged. */
function scoreRow(label, score, judged, strong) {
  const errors = score.errors ? `, ${count(score.errors)} err` : "", n = judged ? score.n - score.finished : score.n;
  const [value, interval] = judged ? [score.rate, score.interval] : [score.mean_return, score.return_interval];
  const bounds = judged ? range(interval) : interval ? `[${interval.map(figure).join(", ")}]` : "";
  const texts = [judged ? percent(value) : figure(value), bounds, `n = ${count(n)}${errors}`];
  return { label, value, interval, texts, strong, kind: judged ? "success" : "finished" };
}

/** Rates have one scale; that of returns has all of them, and zero. */
function scoreTicks(rows, judged) {
  if (judged) return [0, 0.25, 0.5, 0.75, 1].map((at) => [at, percent(at, 0)]);
  const known = rows.flatMap(({ value, interval }) => [0, ...(value === null ? [] : [value]), ...(interval || [])]);
  const down = Math.min(...known), up = Math.max(...known), low = down < 0 ? -niceCeiling(-down) : 0;
  const high = up > 0 ? niceCeiling(up) : low === 0 ? 1 : 0;
  return [...new Set([low, 0, (low + high) / 2, high])].sort((a, b) => a - b).map((at) => [at, figure(at)]);
}

Object.assign(DRAWN, {
  /** Several scores, each with its name. */
  scores({ named, judged }) {
    const rows = named.map(([label, score, strong]) => scoreRow(label, score, judged, strong));
    return drawn({ draw: "intervals", rows, ticks: scoreTicks(rows, judged), zero: judged ? null : 0 });
  },

  /** All together, each suite and its tasks; of very many tasks, those that did worst. */
  results({ overall, suites, tasks, judged }) {
    const worst = [...tasks].sort((a, b) => (a.rate === null) - (b.rate === null) || (a.rate || 0) - (b.rate || 0));
    const shown = new Set(worst.slice(0, MOST_TASKS));
    const named = [["overall", overall, true], ...suites.flatMap((suite) => [
      ...(suites.length > 1 ? [[suite.suite, suite, true]] : []),
      ...tasks.filter((task) => task.suite === suite.suite && shown.has(task)).map((task) => [task.task, task, false])])];
    const more = tasks.length > MOST_TASKS ? `The ${MOST_TASKS} lowest of ${count(tasks.length)} tasks are shown.` : "";
    return el("div", "", [drawn({ draw: "scores", named, judged }), more ? el("p", "note", more) : null]);
  },

  /** Differences of two runs, to both sides of zero. */
  differences({ rows, rates }) {
    const known = rows.flatMap(({ value, interval }) => [value || 0, ...(interval || [])]).map(Math.abs);
    const reach = Math.min(rates ? 1 : Infinity, niceCeiling(Math.max(0.01, ...known)));
    const signed = (at) => (at ? `${at < 0 ? "-" : "+"}${rates ? fixed(100 * Math.abs(at), 1) : figure(Math.abs(at))}` : rates ? "0.0" : figure(0));
    return drawn({ draw: "intervals", rows, zero: 0, ticks: [-1, -0.5, 0, 0.5, 1].map((part) => [part * reach, signed(part * reach)]) });
  },

  /** How many failures are of each kind, or have each label, with links to some. */
  labels({ head, rows }) {
    const heads = [head, "failures", "share", "95 % interval", "episodes"];
    return drawn({ draw: "table", heads, right: [1], rows: rows.map(([label, cells, share, bounds]) => {
      const links = cells.slice(0, 8).flatMap((cell) => [{ a: String(grid.seed(cell)), href: `#e${cell}` }, " "]);
      return [label, count(cells.length), share, bounds, [...links, cells.length > 8 ? `and ${count(cells.length - 8)} more` : ""]];
    }) });
  },

  /** Settings by name; what is unset is left out, what is nested has a name with dots. */
  facts({ lists }) {
    return el("div", "facts", lists.map(([title, facts]) => [title, Object.entries(flatOf(facts))]).filter(([, facts]) => facts.length)
      .map(([title, facts]) => el("div", "", [el("h3", "", title), el("dl", "", facts.flatMap(([name, value]) => [el("dt", "", name), el("dd", "", value)]))])));
  },
});

/** The lengths of the episodes that did not err, by outcome. */
function drawLengths(steps) {
  const groups = [..."SFD"].map((letter) => [letter, steps.filter((n, cell) => n !== null && grid.letter(cell) === letter).sort((a, b) => a - b)])
    .filter(([, some]) => some.length);
  byId("lengths").hidden = !groups.length;
  if (!groups.length) return;
  const low = Math.min(...groups.map(([, some]) => some[0])), high = Math.max(...groups.map(([, some]) => some.at(-1)));
  const width = Math.max(1, Math.ceil(niceCeiling((high - low + 1) / 40))), first = width * Math.floor(low / width);
  const columns = Math.max(12, Math.floor((high - first) / width) + 1);
  const counts = groups.map(([letter, some]) => {
    const found = new Array(columns).fill(0);
    for (const n of some) found[Math.floor((n - first) / width)] += 1;
    return [KINDS[letter], found];
  });
  const axis = [count(first), `steps an episode; a column is ${width === 1 ? "1 step" : `${count(width)} steps`}`, count(first + columns * width)];
  const all = groups.reduce((sum, [, some]) => sum + some.length, 0);
  const middle = (some) => (some[(some.length - 1) >> 1] + some[some.length >> 1]) / 2;
  byId("length-chart").replaceChildren(
    drawn({ draw: "columns", groups: counts, axis, label: `${count(all)} episodes, from ${count(low)} to ${count(high)} steps` }),
    drawn({ draw: "legend", entries: groups.map(([letter, some]) =>
      [KINDS[letter], NAMES[letter], `median ${middle(some).toLocaleString("en")} steps, n = ${count(some.length)}`]) }));
}
