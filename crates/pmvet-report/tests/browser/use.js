// Uses the page as a person would.
pmvetTest(async (check) => {
  const $ = (selector) => document.querySelector(selector);
  const $$ = (selector) => [...document.querySelectorAll(selector)];
  const frame = () => new Promise((done) => setTimeout(done, 60));
  const press = (key, target) => (target || document.activeElement || document.body)
    .dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const type = (text) => { $("#text").value = text; $("#text").dispatchEvent(new Event("input", { bubbles: true })); };
  const set = (id, value) => { $(id).value = value; $(id).dispatchEvent(new Event("change", { bubbles: true })); };
  const shown = () => Number($("#status").textContent.replace(/,/g, "").match(/^\d+/)[0]);
  const titles = () => $$("#rows .row:not(.group)").sort((a, b) => a.offsetTop - b.offsetTop).map((row) => row.title);
  const wide = innerWidth >= 900;
  const visible = (selector) => { const box = $(selector).getBoundingClientRect(); return box.width > 0 && box.height > 0; };

  const data = JSON.parse($("#data").textContent);
  const countable = data.findings.filter((f) => !f.pedantic && !f.known).length;
  check("all findings are listed", shown() === countable, [shown(), countable]);
  check("few rows are in the page", $$("#rows .row").length < 80, $$("#rows .row").length);
  check("nothing is wider than the window", document.documentElement.scrollWidth <= innerWidth, [document.documentElement.scrollWidth, innerWidth]);
  check("the overview is there", !wide || $("#main h2").textContent === "Overview", $("#main h2").textContent);
  check("earlier runs are compared", !wide || $$(".trend tbody tr").length === data.trend.length && data.trend.length === 2, data.trend.length);
  check("the tree is drawn", !data.tree || !wide || $$(".icicle .cell").length > 0, $$(".icicle .cell").length);

  const word = data.findings[0].title.split(/\s+/)[0];
  press("/", document.body);
  check("slash goes to the filter", document.activeElement.id === "text", document.activeElement.id);
  type("no such text anywhere");
  check("a text that is nowhere hides all", shown() === 0, shown());
  type(word);
  check("a text that is somewhere does not", shown() > 0 && shown() <= countable, shown());
  press("Escape");
  check("escape leaves the filter", document.activeElement.id !== "text", document.activeElement.id);
  press("Escape");
  check("escape clears the filter", shown() === countable && $("#text").value === "", shown());

  const chip = $("#severities .chip.error");
  chip.click();
  check("severity filter", shown() === data.findings.filter((f) => f.severity !== "error" && !f.pedantic && !f.known).length, shown());
  chip.click();
  const rule = data.findings[0].rule;
  set("#rule", rule);
  check("rule filter", shown() === data.findings.filter((f) => f.rule === rule && !f.pedantic && !f.known).length, shown());
  set("#rule", "");
  const file = data.findings.find((f) => f.file).file;
  set("#file", file);
  check("file filter", shown() === data.findings.filter((f) => f.file === file && !f.pedantic && !f.known).length, shown());
  set("#file", "");

  set("#group", "");
  set("#sort", "title");
  await frame();
  const sorted = titles();
  check("sorted by title", sorted.length > 1 && sorted.every((t, i) => i === 0 || sorted[i - 1] <= t), sorted);
  set("#sort", "count");
  await frame();
  const first = Math.max(...data.findings.filter((f) => !f.pedantic && !f.known).map((f) => f.count));
  check("sorted by count", data.findings.some((f) => f.title === titles()[0] && f.count === first), titles()[0]);
  set("#sort", "severity");
  set("#group", "rule");
  await frame();
  check("groups have heads", $$("#rows .row.group").length > 0, 0);

  $("#list").focus();
  press("j");
  check("j selects", $("#rows [aria-selected=true]") !== null, null);
  press("Enter");
  const before = $$("#rows .row:not(.group)").length;
  check("enter on a head folds the group", $("#rows .row.group").getAttribute("aria-expanded") === "false", before);
  press("Enter");
  press("j");
  press("j");
  press("k");
  press("Enter");
  await frame();
  check("enter opens", $("#main .story") !== null && visible("#main"), $("#main").textContent.slice(0, 80));
  check("the open finding is the selected one", wide ? $("#main h2").textContent === $("#rows [aria-selected=true]").title.replaceAll("`", "") : true, $("#main h2").textContent);
  check("the finding is not wider than the window", document.documentElement.scrollWidth <= innerWidth && $("#main").scrollWidth <= $("#main").clientWidth + 1,
    [document.documentElement.scrollWidth, $("#main").scrollWidth, $("#main").clientWidth]);
  for (const part of ["source, .bare", "timeline", "icicle, .story"]) check(`shows .${part}`, $(`#main .${part}`) !== null, null);
  const title = $("#main h2").textContent;
  press("j", document.body);
  press("j", document.body);
  await frame();
  check("j goes on to the next", countable < 2 || $("#main h2").textContent !== "Overview", title);
  const cell = $("#main .icicle .cell");
  if (cell) { cell.click(); check("the tree zooms", $$("#main .icicle .cell").length > 0, 0); }
  press("Escape", document.body);
  await frame();
  check("escape closes", visible("#list") && (!wide || $("#main h2").textContent === "Overview"), $("#main h2").textContent);

  const list = $("#list");
  list.scrollTop = list.scrollHeight;
  // Without a screen there are no pictures, and without pictures browsers send no such event.
  list.dispatchEvent(new Event("scroll"));
  const bottom = Math.max(...$$("#rows .row").map((row) => row.getBoundingClientRect().bottom));
  check("the end of the list is drawn", Math.abs(bottom - list.getBoundingClientRect().bottom) < 3, [bottom, list.getBoundingClientRect().bottom]);
  check("still few rows", $$("#rows .row").length < 80, $$("#rows .row").length);
  press("?", document.body);
  check("help opens", $("#help").open, null);
  $("#help").close();

  for (let at = 0; at < 40; at++) {
    list.scrollTop = (list.scrollHeight * at) / 40;
    list.dispatchEvent(new Event("scroll"));
    type("recovery".slice(0, at % 9));
    if ($$("#rows .row").length >= 80) check("few rows wherever one is", false, $$("#rows .row").length);
  }
  type("");
  document.head.append(Object.assign(document.createElement("style"), { textContent: "* { transition: none !important; }" }));
  const accessible = (what) => {
    for (const theme of ["light", "dark"]) {
      document.documentElement.dataset.theme = theme;
      const broken = pmvetAccessibility();
      check(`accessible, ${theme}: ${what}`, broken.length === 0, broken.slice(0, 8));
    }
  };
  accessible("list");
  location.hash = "#overview";
  await frame();
  check("a link leads to the overview", visible("#main") && $("#main h2").textContent === "Overview", $("#main h2").textContent);
  accessible("overview");
  check("times add up", Math.abs(data.run.phases.reduce((sum, phase) => sum + phase.seconds, 0) - data.run.seconds) < 0.01
    || $("#main .phases").textContent.includes("everything else"), $("#main .phases").textContent);
  check("what was run is told", $("#main .facts").textContent.includes(data.run.recover), $("#main .facts").textContent);
  check("lines of source have their failure points", !data.covered.files.length || $$("#main .tally.failed").length > 0, null);
  for (const [index, finding] of data.findings.slice(0, 24).entries()) {
    location.hash = `#${encodeURIComponent(finding.fingerprint)}`;
    await frame();
    for (const table of $$("#main .timeline, #main .lanes")) {
      const crash = table.querySelector("thead .crash");
      const box = table.parentElement.getBoundingClientRect();
      const inSight = () => { const { left, right } = crash.getBoundingClientRect(); return left >= box.left - 1 && right <= box.right + 1; };
      if (crash && !inSight()) check("the crash is in sight", false, finding.title);
      table.parentElement.scrollLeft = 0;
      if (crash && !inSight()) check("the crash stays in sight", false, finding.title);
      if (!table.parentElement.parentElement.querySelector(".legend")) check("a timeline has a legend", false, finding.title);
    }
    if (finding.race && $$("#main .lanes tbody tr:not(.locks)").length < 2) check("a race has a lane per thread", false, finding.title);
    if (index % 3 === 0) accessible(finding.rule);
  }
  document.documentElement.dataset.theme = "";
  check("nothing was loaded", performance.getEntriesByType("resource").length === 0, performance.getEntriesByType("resource").map((e) => e.name));
  check("no script but ours", $$("script").length === 3 && !document.title.includes("owned") && $$("img, svg, iframe, object, link").length === 0,
    [$$("script").length, document.title]);
});
