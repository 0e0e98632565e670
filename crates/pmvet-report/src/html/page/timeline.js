// What happened to the cache lines: a row per line, a column per event. The column of the crash is always in sight.

const AFTER = { stored: "dirty", flushed: "flushed", persisted: "persistent" };
const AT_CRASH = { clean: "unchanged", dirty: "not safe", flushed: "not safe", persistent: "safe" };

function timelineView(timeline) {
  const { lanes, steps } = timeline;
  const head = el("tr", {}, el("th", { scope: "col" }, "cache line"),
    steps.map((step) => el("th", { scope: "col", class: step.what === "crash" ? "crash" : null },
      el("span", { class: "what" }, step.what), whereView(step.frame),
      el("span", { class: "seq" }, `#${step.seq} thread ${step.thread}`))));
  const rows = lanes.map((lane, index) => {
    let state = "clean";
    const cells = steps.map((step) => {
      const here = step.lanes.includes(index);
      if (here && AFTER[step.what]) state = AFTER[step.what];
      const crash = step.what === "crash";
      const text = crash ? AT_CRASH[state] : here ? step.object || "●" : step.everywhere && step.what === "fenced" ? "│" : "";
      const title = here || crash ? `${step.what}; the line is ${state}` : `the line is ${state}`;
      return el("td", { class: `${state}${here ? " here" : ""}${crash ? " crash" : ""}`, title }, text);
    });
    const name = lane.objects.length ? lane.objects.join(", ") : lane.file;
    return el("tr", {}, el("th", { scope: "row" }, el("span", { class: "name" }, name),
      el("span", { class: "where" }, `${lane.file} ${lane.offset}`)), cells);
  });
  const states = [["clean", "not written"], ["dirty", "stored, in the cache only"], ["flushed", "flushed, not fenced"],
    ["persistent", "persistent"]];
  const marks = [["name or ●", "the event is about this line"], ["│", "a fence: waits for flushes of its thread"]];
  return [
    timeline.leftOut ? el("p", { class: "note" }, `${plural(timeline.leftOut, "earlier event is", "earlier events are")} not shown.`) : null,
    el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Timeline" },
      el("table", { class: "timeline" }, el("thead", {}, head), el("tbody", {}, rows))),
    legend(states, marks.concat(steps.some((step) => step.what === "crash") ? [["red column", "the crash, and whether the line is safe by then"]] : [])),
  ];
}

/** The function and the line of a frame, one below the other. */
function whereView(frame) {
  const label = frame === null ? "" : data.frames[frame].label;
  const at = label.lastIndexOf(" (");
  if (at < 0) return el("span", { class: "where" }, label);
  return el("span", { class: "where" }, label.slice(0, at), el("br"), label.slice(at + 2, -1));
}

/** What colours and marks mean: [class of a swatch, text] and [mark, text]. */
function legend(swatches, marks) {
  return el("p", { class: "legend" },
    swatches.map(([kind, text]) => el("span", {}, el("i", { class: `swatch ${kind}` }), text)),
    marks.map(([mark, text]) => el("span", {}, el("b", {}, mark), ` ${text}`)));
}

/** Timelines are read from their end, where the crash is. */
function scrollToCrash(root) {
  for (const box of root.querySelectorAll(".scroll:has(.crash)")) box.scrollLeft = box.scrollWidth;
}
