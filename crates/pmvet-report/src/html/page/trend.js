// Runs of the same command, oldest first: how many findings each had, and what came and went.

function trendTable(runs) {
  const sum = (run) => SEVERITIES.reduce((total, severity) => total + run[severity], 0);
  const most = Math.max(1, ...runs.map(sum));
  const number = (value) => el("td", {}, value === null ? "" : value.toLocaleString("en"));
  const isThis = (index) => index === runs.length - 1;
  const row = (run, index) => el("tr", { "aria-current": isThis(index) ? "true" : null },
    el("th", { scope: "row" }, isThis(index) ? "this run" : run.started || run.id || "an earlier run"),
    el("td", { class: "bar" }, SEVERITIES.filter((severity) => run[severity]).map((severity) => {
      const part = el("span", { class: severity });
      part.style.width = `${(100 * run[severity]) / most}%`;
      return part;
    })),
    SEVERITIES.map((severity) => number(run[severity])), number(run.new), number(run.gone), el("td", {}, duration(run.seconds)));
  const head = ["run", "findings", "errors", "warnings", "performance", "new", "gone", "time"];
  return el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Compared with earlier runs" },
    el("table", { class: "trend" },
      el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, runs.map(row))));
}
