// The run as a whole: what was found, what was covered, where the time went.

function overview() {
  const run = data.run;
  const number = (severity) => data.findings.filter((f) => f.severity === severity && !f.pedantic && !f.known).length;
  const names = { error: ["error", "errors"], warning: ["warning", "warnings"], performance: ["performance", "performance"] };
  const tiles = SEVERITIES.map((severity) => {
    const count = number(severity);
    return el("div", { class: `tile ${severity}` }, el("strong", {}, count.toLocaleString("en")), names[severity][count === 1 ? 0 : 1]);
  });
  return [
    el("h2", {}, "Overview"),
    el("div", { class: "tiles" }, tiles),
    remarks(run),
    section("Covered", coverage(run)),
    run.notCovered.length
      ? section("Not covered", el("ul", {}, run.notCovered.map((remark) => el("li", {}, remark)))) : null,
    run.phases.length ? section("Time", phases(run)) : null,
    tree ? section("Failure points", icicleView(null)) : null,
    section("Run", facts(run)),
  ];
}

function remarks(run) {
  const lines = [];
  if (run.leftOut) lines.push(`${plural(run.leftOut, "finding is", "findings are")} not on this page; the JSON export has all.`);
  const hidden = run.suppressed.reduce((sum, entry) => sum + entry.findings, 0);
  if (hidden) lines.push(`${plural(hidden, "finding is", "findings are")} suppressed.`);
  for (const entry of run.unused) lines.push(`Suppression ${entry.number} hides nothing (“${entry.reason}”): remove it.`);
  return lines.length ? el("ul", { class: "remarks" }, lines.map((line) => el("li", {}, line))) : null;
}

function coverage(run) {
  if (!run.counters.some((counter) => counter.done > 0)) {
    return el("p", { class: "warning" }, "Nothing was analysed: that there are no findings means nothing.");
  }
  return el("dl", { class: "coverage" }, run.counters.map((counter) => {
    const known = counter.of !== null && counter.of !== undefined;
    const value = known ? `${counter.done.toLocaleString("en")} of ${counter.of.toLocaleString("en")}` : counter.done.toLocaleString("en");
    return [el("dt", {}, counter.name), el("dd", {}, value,
      known ? el("meter", { min: 0, max: Math.max(counter.of, 1), value: counter.done, "aria-label": counter.name }) : null)];
  }));
}

function phases(run) {
  const longest = Math.max(...run.phases.map((phase) => phase.seconds), 0.001);
  return [el("dl", { class: "phases" }, run.phases.map((phase) => {
    const bar = el("span", { class: "bar" });
    bar.style.width = `${(100 * phase.seconds) / longest}%`;
    return [el("dt", {}, phase.name), el("dd", {}, el("span", { class: "track" }, bar), el("span", {}, duration(phase.seconds)))];
  })), el("p", { class: "note" }, `${duration(run.seconds)} in all`)];
}

function facts(run) {
  const rows = [["command", run.command], ["run", run.id], ["started", run.started], ["seed", run.seed],
    ["pmvet", run.version], ...Object.entries(run.versions)];
  return el("dl", { class: "facts" }, rows.filter(([, value]) => value).map(([name, value]) =>
    [el("dt", {}, name), el("dd", {}, el("code", {}, value))]));
}
