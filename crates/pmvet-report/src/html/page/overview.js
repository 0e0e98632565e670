// The run as a whole: what was found, what was run, what was covered, where the time went.

function overview() {
  const run = data.run;
  const tiles = SEVERITIES.map((severity) => {
    const count = data.findings.filter((f) => f.severity === severity && isCounted(f)).length;
    const name = severity === "performance" || count === 1 ? severity : `${severity}s`;
    return el("div", { class: `tile ${severity}` }, el("strong", {}, count.toLocaleString("en")), name);
  });
  return [
    el("h2", {}, "Overview"),
    el("div", { class: "tiles" }, tiles),
    verdict(run),
    remarks(run),
    data.trend.length ? section("Compared with earlier runs", trendTable(data.trend)) : null,
    section("What was run", facts([["program", run.command], ["set-up", run.setup], ["recovery", run.recover], ["oracle", run.oracle]])),
    section("Covered", coverage(run)),
    run.notCovered.length
      ? section("Not covered", el("ul", {}, run.notCovered.map((remark) => el("li", {}, remark)))) : null,
    run.phases.length ? section("Time", phases(run)) : null,
    tree ? section("Failure points by call path", icicleView(null)) : null,
    data.covered.files.length ? section("Failure points by source line", coveredLines(data.covered)) : null,
    data.coveredRecovery.files.length ? section("Recovery by source line", el("p", {}, RECOVERY_LINES), coveredLines(data.coveredRecovery)) : null,
    section("About this run", facts([["run", run.id], ["started", run.started], ["seed", run.seed], ["pmvet", run.version],
      ...Object.entries(run.versions)])),
  ];
}

const RECOVERY_LINES = "Where recovery ran, stored to persistent memory and was crashed again. Lines that only read are not marked.";

const wasAnalysed = (run) => run.counters.some((counter) => counter.done > 0);

/** One sentence about a run in which nothing counts. */
function verdict(run) {
  if (data.findings.some(isCounted) || run.leftOut) return null;
  if (!wasAnalysed(run)) return el("p", { class: "verdict nothing" }, "Nothing was analysed: that there are no findings means nothing.");
  const known = data.findings.length ? "Nothing new was found" : "Nothing was found";
  const limits = run.notCovered.length ? "This says nothing about what is listed under “Not covered”." : "Everything that pmvet set out to try was tried.";
  return el("p", { class: "verdict clean" }, el("strong", {}, `${known}. `), limits);
}

function remarks(run) {
  const lines = [];
  if (run.leftOut) lines.push(`${plural(run.leftOut, "finding is", "findings are")} not on this page; the JSON export has all.`);
  const hidden = run.suppressed.reduce((sum, entry) => sum + entry.findings, 0);
  if (hidden) lines.push(`${plural(hidden, "finding is", "findings are")} suppressed.`);
  for (const entry of run.unused) lines.push(`Suppression ${entry.number} hides nothing (“${entry.reason}”): remove it.`);
  return lines.length ? el("ul", { class: "remarks" }, lines.map((line) => el("li", {}, line))) : null;
}

/** By engine if there were several. */
function coverage(run) {
  if (!wasAnalysed(run)) return el("p", {}, "Nothing.");
  const engines = run.engines.filter((engine) => engine.counters.length);
  if (!engines.length) return counters(run.counters);
  return engines.map((engine) => [el("h4", {}, engine.name), counters(engine.counters)]);
}

function counters(list) {
  return el("dl", { class: "coverage" }, list.map((counter) => {
    const known = Boolean(counter.of);
    const value = known ? `${counter.done.toLocaleString("en")} of ${counter.of.toLocaleString("en")}` : counter.done.toLocaleString("en");
    return [el("dt", {}, counter.name), el("dd", {}, value,
      known ? el("meter", { min: 0, max: Math.max(counter.of, 1), value: counter.done, "aria-label": counter.name }) : null)];
  }));
}

/** The phases, and what is left of the whole: they add up. */
function phases(run) {
  const named = run.phases.reduce((sum, phase) => sum + phase.seconds, 0);
  const rest = run.seconds - named;
  const all = rest > 0 ? [...run.phases, { name: "everything else", seconds: rest }] : run.phases;
  const whole = Math.max(run.seconds, named, 0.001);
  return [el("dl", { class: "phases" }, all.map((phase) => {
    const bar = el("span", { class: "bar" });
    bar.style.width = `${(100 * phase.seconds) / whole}%`;
    return [el("dt", {}, phase.name), el("dd", {}, el("span", { class: "track" }, bar), el("span", { class: "seconds" }, duration(phase.seconds)))];
  }), el("dt", {}, el("b", {}, "in all")), el("dd", {}, el("span", { class: "track none" }), el("b", { class: "seconds" }, duration(run.seconds))))];
}

function facts(rows) {
  return el("dl", { class: "facts" }, rows.filter(([, value]) => value).map(([name, value]) =>
    [el("dt", {}, name), el("dd", {}, el("code", {}, value))]));
}
