// Lines of source at which crashes were tried, with what recovery made of them.

const OPEN_FILES = 3;

function coveredLines(covered) {
  return [
    covered.files.map((entry, index) => coveredFile(entry, index < OPEN_FILES)),
    legend(VERDICTS, [["3 ✓ 1 ✗ 2 –", "so many recovered, failed, were not tried"]]),
    covered.leftOut ? el("p", { class: "note" }, `${plural(covered.leftOut, "line", "lines")} more, not shown`) : null,
  ];
}

function coveredFile({ file, lines }, open) {
  const sum = (at) => lines.reduce((total, line) => total + line[at], 0);
  const summary = el("summary", {}, el("code", {}, file), ` ${plural(lines.length, "line", "lines")}: ${tallyText(sum(1), sum(2), sum(3))}`);
  // Drawn when they are looked at: there may be many files.
  const body = el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": `Failure points in ${file}` });
  const details = el("details", { class: "covered" }, summary, body);
  const fill = () => { if (details.open && !body.firstChild) body.append(coveredTable(file, lines)); };
  details.open = open;
  fill();
  details.addEventListener("toggle", fill);
  return details;
}

function coveredTable(file, lines) {
  const texts = data.lines[file] || {};
  const tallies = new Map(lines.map((line) => [line[0], line]));
  const near = new Set();
  for (const number of tallies.keys()) for (let line = number - 1; line <= number + 1; line++) if (line === number || line in texts) near.add(line);
  const rows = [];
  let previous = null;
  for (const line of [...near].sort((a, b) => a - b)) {
    if (previous !== null && line > previous + 1) rows.push(el("tr", { class: "gap" }, el("td", {}, "⋯"), el("td"), el("td")));
    previous = line;
    const [, ok, failed, notTried] = tallies.get(line) || [];
    const kind = !tallies.has(line) ? "" : failed ? "failed" : ok ? "ok" : "not-tried";
    rows.push(el("tr", {}, el("td", { class: "number" }, line),
      el("td", { class: `tally ${kind}` }, kind ? tallyText(ok, failed, notTried) : null),
      el("td", {}, el("code", {}, texts[line] || " "))));
  }
  return el("table", { class: "covered" }, el("tbody", {}, rows));
}

function tallyText(ok, failed, notTried) {
  return [[ok, "✓"], [failed, "✗"], [notTried, "–"]].filter(([count]) => count)
    .map(([count, mark]) => `${count.toLocaleString("en")} ${mark}`).join(" ");
}
