// What happened to the cache lines: a row per line, a column per event.

const AFTER = { stored: "dirty", flushed: "flushed", persisted: "persistent" };

function timelineView(timeline) {
  const { lanes, steps } = timeline;
  const head = el("tr", {}, el("th", { scope: "col" }, "cache line"),
    steps.map((step) => el("th", { scope: "col", class: step.what === "crash" ? "crash" : null },
      el("span", { class: "what" }, step.what),
      el("span", { class: "where" }, step.frame === null ? "" : data.frames[step.frame].label),
      el("span", { class: "seq" }, `#${step.seq} thread ${step.thread}`))));
  const rows = lanes.map((lane, index) => {
    let state = "clean";
    const cells = steps.map((step) => {
      const here = step.lanes.includes(index);
      if (here && AFTER[step.what]) state = AFTER[step.what];
      const crash = step.what === "crash";
      const text = here ? step.object || "●" : crash ? "✗" : step.everywhere && step.what === "fenced" ? "│" : "";
      const title = here || crash ? `${step.what}; the line is ${state}` : `the line is ${state}`;
      return el("td", { class: `${state}${here ? " here" : ""}${crash ? " crash" : ""}`, title }, text);
    });
    const name = lane.objects.length ? lane.objects.join(", ") : lane.file;
    return el("tr", {}, el("th", { scope: "row" }, el("span", { class: "name" }, name),
      el("span", { class: "where" }, `${lane.file} ${lane.offset}`)), cells);
  });
  const legend = [["clean", "not written"], ["dirty", "stored, in the cache only"], ["flushed", "flushed, not fenced"],
    ["persistent", "persistent"]];
  return [
    el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Timeline" },
      el("table", { class: "timeline" }, el("thead", {}, head), el("tbody", {}, rows))),
    el("p", { class: "legend" }, legend.map(([state, text]) => el("span", {}, el("i", { class: `swatch ${state}` }), text))),
    timeline.leftOut ? el("p", { class: "note" }, `${plural(timeline.leftOut, "event", "events")} more, not shown`) : null,
  ];
}
