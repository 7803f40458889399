// What stands first: how far a run is, how often it succeeds, and what one must know.
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
  const head = state.head, alerts = [...(state.alerts || [])], add = (text, bad) => alerts.push({ words: [text], bad });
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
