// Filters, keys, and which of the views is to be seen.

const mainBox = byId("main");
let opened = null;

function open(finding, focus) {
  opened = finding;
  replace(mainBox, detail(finding));
  mainBox.setAttribute("aria-label", "Finding");
  mainBox.scrollTop = 0;
  document.body.dataset.view = "main";
  scrollToCrash(mainBox);
  setHash(finding.fingerprint);
  if (focus) mainBox.focus({ preventScroll: true });
}

function showOverview() {
  opened = null;
  replace(mainBox, el("button", { type: "button", class: "back", onclick: () => close() }, "← Findings"), overview());
  mainBox.setAttribute("aria-label", "Overview");
  mainBox.scrollTop = 0;
  setHash("");
}

/** Back to the list. */
function close() {
  showOverview();
  document.body.dataset.view = "list";
  draw();
  list.focus({ preventScroll: true });
}

function setHash(text) {
  // Not every browser lets a page that was opened from a file do this.
  try {
    history.replaceState(null, "", text ? `#${encodeURIComponent(text)}` : location.pathname + location.search);
  } catch { /* then there is no link to a finding */ }
}

function fillSelect(select, all, entries) {
  replace(select, el("option", { value: "" }, all), entries.map(([name, count]) => el("option", { value: name }, `${name} (${count})`)));
}

function toggle(text, count, pressed, onchange, kind) {
  const button = el("button", { type: "button", class: `chip ${kind}`, "aria-pressed": String(pressed) },
    text, " ", el("b", {}, count.toLocaleString("en")));
  button.addEventListener("click", () => {
    const now = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(now));
    onchange(now);
    refresh();
  });
  return button;
}

function setUpFilters() {
  const total = (test) => data.findings.filter(test).length;
  replace(byId("severities"), SEVERITIES.map((severity) => toggle(severity, total((f) => f.severity === severity && isCounted(f)), true,
    (on) => (on ? filter.severities.add(severity) : filter.severities.delete(severity)), severity)));
  const extras = [["pedantic", "pedantic rules"], ["known", "in the baseline"]];
  replace(byId("extras"), extras.map(([key, name]) => {
    const count = total((finding) => finding[key]);
    return count ? toggle(name, count, false, (on) => { filter[key] = on; }, "extra") : null;
  }));
  fillSelect(byId("rule"), "all", counts((finding) => finding.rule));
  fillSelect(byId("file"), "all", counts((finding) => finding.file));
  for (const key of ["rule", "file", "group", "sort"]) {
    byId(key).addEventListener("change", (event) => {
      filter[key] = event.target.value;
      filter.folded.clear();
      list.scrollTop = 0;
      refresh();
    });
  }
  byId("text").addEventListener("input", (event) => {
    filter.text = event.target.value;
    list.scrollTop = 0;
    refresh();
  });
  byId("filters").addEventListener("submit", (event) => {
    event.preventDefault();
    list.focus();
    if (view.selected < 0) move(1);
  });
}

const KEYS = {
  j: () => move(1), ArrowDown: () => move(1), k: () => move(-1), ArrowUp: () => move(-1),
  Home: () => choose(0), End: () => choose(view.rows.length - 1),
  Enter: () => activate(),
  "/": () => { document.body.dataset.view = "list"; byId("text").focus(); byId("text").select(); },
  "?": () => byId("help").showModal(),
  Escape: () => {
    if (document.body.dataset.view === "main" || opened) return close();
    if (!filter.text) return;
    byId("text").value = filter.text = "";
    refresh();
  },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const typing = event.target.closest("input, select, textarea");
  if (typing) {
    if (event.key === "Escape") { event.preventDefault(); typing.blur(); list.focus(); }
    return;
  }
  const scrolls = event.target.closest(".scroll, pre, #main");
  if (scrolls && ["ArrowDown", "ArrowUp", "Home", "End"].includes(event.key)) return;
  const onControl = event.target.closest("button, summary, a");
  if (event.key === "Enter" && (onControl || scrolls)) return;
  const action = KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});

const THEMES = ["", "light", "dark"];
byId("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme || "") + 1) % THEMES.length];
  document.documentElement.dataset.theme = next;
  byId("theme").textContent = next ? `Theme: ${next}` : "Theme";
});
byId("show-overview").addEventListener("click", () => { showOverview(); document.body.dataset.view = "main"; });
byId("show-help").addEventListener("click", () => byId("help").showModal());

byId("command").textContent = data.run.command;
byId("command").title = data.run.command;
document.title = `pmvet: ${plural(data.findings.length, "finding", "findings")}`;

/** The finding that the address names, if it names one. */
function openLinked(hash) {
  let name = "";
  try { name = decodeURIComponent(hash.slice(1)); } catch { /* not one of ours */ }
  const finding = name && data.findings.find((candidate) => candidate.fingerprint === name);
  if (name === "overview") { showOverview(); document.body.dataset.view = "main"; }
  if (!finding) return;
  const index = view.rows.findIndex((row) => row.finding === finding);
  if (index >= 0) choose(index);
  open(finding, false);
}

const linked = location.hash;
setUpFilters();
refresh();
showOverview();
// Without findings there is nothing to choose from.
if (!data.findings.length) document.body.dataset.view = "main";
openLinked(linked);
window.addEventListener("resize", () => scrollToCrash(mainBox));
window.addEventListener("hashchange", () => openLinked(location.hash));
