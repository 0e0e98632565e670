// The list of findings. Only the rows in sight are in the page, so that ten thousand are as fast as ten.

const ROW = 58;
const HEAD = 34;
const MARGIN = 8;

const list = byId("list");
const rowsBox = byId("rows");
const view = { findings: [], rows: [], tops: [0], selected: -1, drawn: new Map() };

/** Filters, sorts and draws anew; keeps the selected finding selected if it is still there. */
function refresh() {
  const kept = view.rows[view.selected];
  Object.assign(view, select());
  view.tops = [0];
  for (const row of view.rows) view.tops.push(view.tops[view.tops.length - 1] + (row.finding ? ROW : HEAD));
  rowsBox.style.height = `${view.tops[view.rows.length]}px`;
  view.selected = kept ? view.rows.findIndex((row) => (kept.finding ? row.finding === kept.finding : row.group === kept.group)) : -1;
  view.drawn.forEach((element) => element.remove());
  view.drawn.clear();
  const hidden = data.findings.length - view.findings.length;
  byId("status").textContent = `${plural(view.findings.length, "finding", "findings")}`
    + (hidden ? `, ${hidden.toLocaleString("en")} hidden by the filter` : "");
  byId("empty").textContent = view.rows.length ? "" : data.findings.length ? "No finding passes the filter." : "Nothing was found. The overview says what was tried.";
  // A tree has to have items.
  if (view.rows.length) list.setAttribute("role", "tree");
  else list.setAttribute("role", "group");
  draw();
}

function rowAt(y) {
  let low = 0;
  let high = view.rows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (view.tops[middle + 1] <= y) low = middle + 1;
    else high = middle;
  }
  return low;
}

function draw() {
  const first = Math.max(0, rowAt(list.scrollTop) - MARGIN);
  const last = Math.min(view.rows.length, rowAt(list.scrollTop + list.clientHeight) + MARGIN);
  for (const [index, element] of view.drawn) {
    if (index < first || index >= last) {
      element.remove();
      view.drawn.delete(index);
    }
  }
  for (let index = first; index < last; index++) {
    if (view.drawn.has(index)) continue;
    const element = rowElement(view.rows[index], index);
    view.drawn.set(index, element);
    rowsBox.append(element);
  }
  mark();
}

function rowElement(row, index) {
  const element = row.finding ? findingRow(row.finding) : groupRow(row);
  element.id = `row-${index}`;
  // Most rows are not in the page: say which of how many this is.
  for (const [name, value] of [["level", row.level], ["posinset", row.position], ["setsize", row.of]]) element.setAttribute(`aria-${name}`, value);
  element.style.top = `${view.tops[index]}px`;
  element.addEventListener("click", () => { choose(index); activate(); });
  return element;
}

function findingRow(finding) {
  return el("div", { class: `row ${finding.severity}`, role: "treeitem", title: finding.title },
    el("span", { class: "title" }, prose(finding.title)),
    el("span", { class: "meta" }, el("span", { class: `badge ${finding.severity}` }, finding.severity),
      el("span", { class: "place" }, finding.place), finding.count > 1 ? el("span", {}, `×${finding.count.toLocaleString("en")}`) : null));
}

function groupRow(row) {
  return el("div", { class: "row group", role: "treeitem", "aria-expanded": String(!row.folded), title: row.group },
    el("span", { class: "fold" }, row.folded ? "▸" : "▾"), el("span", { class: "name" }, row.group),
    el("span", { class: "number" }, row.count.toLocaleString("en")));
}

function mark() {
  for (const [index, element] of view.drawn) element.setAttribute("aria-selected", String(index === view.selected));
  if (view.drawn.has(view.selected)) list.setAttribute("aria-activedescendant", `row-${view.selected}`);
  else list.removeAttribute("aria-activedescendant");
}

/** Selects a row and brings it into sight. */
function choose(index) {
  if (!view.rows.length) return;
  view.selected = Math.max(0, Math.min(view.rows.length - 1, index));
  const top = view.tops[view.selected];
  const bottom = view.tops[view.selected + 1];
  if (top < list.scrollTop) list.scrollTop = top;
  else if (bottom > list.scrollTop + list.clientHeight) list.scrollTop = bottom - list.clientHeight;
  draw();
}

/** To the next row in this direction; past heads of groups if a finding is open. */
function move(step) {
  let index = view.selected + step;
  if (view.selected < 0) index = step > 0 ? 0 : view.rows.length - 1;
  if (opened) while (view.rows[index] && !view.rows[index].finding) index += step;
  if (!view.rows[index]) return;
  choose(index);
  if (opened && view.rows[view.selected].finding) open(view.rows[view.selected].finding, false);
}

function activate() {
  const row = view.rows[view.selected];
  if (!row) return;
  if (row.finding) return open(row.finding, true);
  if (!filter.folded.delete(row.group)) filter.folded.add(row.group);
  refresh();
}

// Browsers send one such event per picture: there is nothing to put off.
list.addEventListener("scroll", draw, { passive: true });
new ResizeObserver(() => draw()).observe(list);
