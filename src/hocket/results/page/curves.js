// The curves of a training run.

const CHARTS = [
  { title: "success", lines: ["train/success", "eval/success"], share: true, evaluations: true },
  { title: "return", lines: ["train/return", "eval/return"] },
  { title: "staleness", lines: ["learn/staleness", "learn/max_staleness"] },
  { title: "KL of an update", lines: ["learn/kl"] },
  { title: "entropy", lines: ["learn/entropy"] },
  { title: "shares of time", lines: ["time/collecting", "time/inferring", "time/stepping", "time/learning"], share: true },
];
const COLOURS = ["accent", "inferring", "waiting", "error"];
const made = new Map();

function drawCurves(curves) {
  const { points, evaluations } = curves;
  for (const chart of CHARTS) {
    const lines = chart.lines.filter((name) => (points[name] || []).length);
    if (!lines.length) continue;
    if (!made.has(chart.title)) {
      const now = el("span"), canvas = el("canvas"), key = el("ul", "legend");
      canvas.setAttribute("role", "img");
      const box = el("div", "curve", [el("h3", "", [chart.title, now]), canvas, key]);
      byId("curves").append(box);
      made.set(chart.title, { now, canvas, key });
    }
    paint(chart, lines, points, chart.evaluations ? evaluations : [], made.get(chart.title));
  }
}

function paint(chart, lines, points, evaluations, { now, canvas, key }) {
  const ratio = devicePixelRatio || 1, wide = canvas.clientWidth || 280, high = canvas.clientHeight || 130;
  canvas.width = Math.round(wide * ratio);
  canvas.height = Math.round(high * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const all = lines.flatMap((name) => points[name]);
  const right = Math.max(1, ...all.map(([x]) => x));
  let [low, high_] = chart.share ? [0, 1] : [Math.min(...all.map(([, y]) => y)), Math.max(...all.map(([, y]) => y))];
  if (low === high_) { low -= 0.5; high_ += 0.5; }
  const x = (at) => 2 + ((wide - 4) * at) / right, y = (at) => high - 14 - ((high - 30) * (at - low)) / (high_ - low);
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = colour("soft");
  pen.strokeStyle = colour("line");
  for (const at of [low, high_]) {
    pen.beginPath(); pen.moveTo(0, y(at)); pen.lineTo(wide, y(at)); pen.stroke();
    pen.fillText(chart.share ? percent(at, 0) : at.toPrecision(3), 2, y(at) - 3);
  }
  const end = `${count(right)} steps`;
  pen.fillText(end, wide - pen.measureText(end).width - 2, high - 2);
  for (const one of evaluations) {
    if (one["eval/success_low"] === null || one["eval/success_low"] === undefined) continue;
    pen.strokeStyle = colour("inferring");
    pen.lineWidth = 1.5;
    pen.beginPath(); pen.moveTo(x(one.env_steps), y(one["eval/success_low"]));
    pen.lineTo(x(one.env_steps), y(one["eval/success_high"])); pen.stroke();
  }
  lines.forEach((name, i) => {
    pen.strokeStyle = pen.fillStyle = colour(COLOURS[chart.lines.indexOf(name)]);
    pen.lineWidth = 1.75;
    pen.beginPath();
    points[name].forEach(([at, value], j) => (j ? pen.lineTo(x(at), y(value)) : pen.moveTo(x(at), y(value))));
    pen.stroke();
    if (name.startsWith("eval/")) for (const [at, value] of points[name]) {
      pen.beginPath(); pen.arc(x(at), y(value), 3, 0, 7); pen.fill();
    }
  });
  const last = points[lines[0]].at(-1)[1], evaluated = evaluations.at(-1);
  now.textContent = evaluated && evaluated["eval/success_low"] !== null && evaluated["eval/success_low"] !== undefined
    ? `evaluated ${percent(evaluated["eval/success"])} [${(100 * evaluated["eval/success_low"]).toFixed(0)}, ${(100 * evaluated["eval/success_high"]).toFixed(0)}], n = ${evaluated.n}`
    : chart.share ? percent(last) : last.toPrecision(3);
  canvas.setAttribute("aria-label", `${chart.title}: ${now.textContent}`);
  key.replaceChildren(...lines.map((name) => {
    const swatch = el("i", "swatch");
    swatch.style.background = colour(COLOURS[chart.lines.indexOf(name)]);
    return el("li", "", [swatch, name.split("/")[0] === "eval" ? "evaluated" : name.split("/")[1].replaceAll("_", " ")]);
  }));
}
