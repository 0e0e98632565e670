// The data, and which findings are to be seen in which order. Knows nothing of the page.

const data = JSON.parse(byId("data").textContent);
const SEVERITIES = ["error", "warning", "performance"];

data.findings.forEach((finding, index) => {
  finding.index = index;
  finding.place = finding.file ? `${finding.file}:${finding.line || "?"}` : finding.at || "unknown";
  finding.search = [finding.title, finding.rule, finding.place, finding.at, finding.fingerprint, finding.happened]
    .join("\n").toLowerCase();
});

const filter = {
  text: "", rule: "", file: "", group: "rule", sort: "severity",
  severities: new Set(SEVERITIES), pedantic: false, known: false, folded: new Set(),
};

const bySeverity = (a, b) => SEVERITIES.indexOf(a.severity) - SEVERITIES.indexOf(b.severity) || a.index - b.index;
const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
const ORDERS = {
  severity: bySeverity,
  count: (a, b) => b.count - a.count || bySeverity(a, b),
  file: (a, b) => compare(a.file || "~", b.file || "~") || (a.line || 0) - (b.line || 0) || bySeverity(a, b),
  title: (a, b) => compare(a.title, b.title) || bySeverity(a, b),
};

const GROUPS = {
  rule: (finding) => finding.rule,
  file: (finding) => finding.file || "no file",
  severity: (finding) => finding.severity,
};

/** Neither of a pedantic rule nor in the baseline. */
const isCounted = (finding) => !finding.pedantic && !finding.known;

function isShown(finding, words) {
  return filter.severities.has(finding.severity)
    && (filter.pedantic || !finding.pedantic)
    && (filter.known || !finding.known)
    && (!filter.rule || finding.rule === filter.rule)
    && (!filter.file || finding.file === filter.file)
    && words.every((word) => finding.search.includes(word));
}

/** The findings that pass the filter, sorted, and as rows with heads of groups between them. */
function select() {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  const findings = data.findings.filter((finding) => isShown(finding, words)).sort(ORDERS[filter.sort]);
  const key = GROUPS[filter.group];
  const placed = (level) => (finding, index, all) => ({ finding, level, position: index + 1, of: all.length });
  if (!key) return { findings, rows: findings.map(placed(1)) };
  const groups = new Map();
  for (const finding of findings) {
    const name = key(finding);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(finding);
  }
  const rows = [];
  let position = 0;
  for (const [name, members] of groups) {
    const folded = filter.folded.has(name);
    rows.push({ group: name, count: members.length, folded, level: 1, position: ++position, of: groups.size });
    if (!folded) members.map(placed(2)).forEach((row) => rows.push(row));
  }
  return { findings, rows };
}

function counts(key) {
  const result = new Map();
  for (const finding of data.findings) {
    const value = key(finding);
    if (value) result.set(value, (result.get(value) || 0) + 1);
  }
  return [...result].sort((a, b) => compare(a[0], b[0]));
}
