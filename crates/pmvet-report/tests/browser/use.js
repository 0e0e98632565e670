// Uses the page as a person would, and writes what came of it into the page, where --dump-dom shows it.
(async () => {
  const results = [];
  const check = (name, good, seen) => results.push(`${good ? "ok" : "FAIL"} ${name}${good ? "" : `: ${JSON.stringify(seen)}`}`);
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

  try {
    const data = JSON.parse($("#data").textContent);
    const countable = data.findings.filter((f) => !f.pedantic && !f.known).length;
    check("all findings are listed", shown() === countable, [shown(), countable]);
    check("few rows are in the page", $$("#rows .row").length < 80, $$("#rows .row").length);
    check("nothing is wider than the window", document.documentElement.scrollWidth <= innerWidth, [document.documentElement.scrollWidth, innerWidth]);
    check("the overview is there", !wide || $("#main h2").textContent === "Overview", $("#main h2").textContent);
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

    let filtering = performance.now();
    for (const text of ["r", "re", "rec", ""]) type(text);
    filtering = performance.now() - filtering;
    check("filtering is quick", filtering < 4000, filtering);
    for (const finding of data.findings.slice(0, 20)) {
      location.hash = `#${encodeURIComponent(finding.fingerprint)}`;
      await frame();
    }
    check("nothing was loaded", performance.getEntriesByType("resource").length === 0, performance.getEntriesByType("resource").map((e) => e.name));
    check("no script but ours", $$("script").length === 4 && !document.title.includes("owned") && $$("img, svg, iframe, object, link").length === 0,
      [$$("script").length, document.title]);
    check("no trouble", pmvetTrouble.length === 0, pmvetTrouble);
  } catch (error) {
    results.push(`FAIL exception: ${error.stack}`);
  }
  const out = document.createElement("pre");
  out.id = "pmvet-results";
  out.textContent = `\n${results.join("\n")}\nend of results\n`;
  document.body.append(out);
})();
