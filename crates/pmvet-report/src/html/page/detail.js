// One finding in full.

function detail(finding) {
  const crash = finding.image;
  const points = finding.places.filter((place) => place.role === "failure-point");
  const node = tree && points.length ? findNode(points[0].stack) : null;
  const [first] = finding.places;
  return [
    el("button", { type: "button", class: "back", onclick: () => close() }, "← Back"),
    el("h2", {}, prose(finding.title)),
    el("p", { class: "tags" },
      el("span", { class: `badge ${finding.severity}` }, finding.severity), el("code", {}, finding.rule),
      el("span", {}, finding.place), el("span", {}, `seen ${plural(finding.count, "time", "times")}`),
      finding.known ? el("span", {}, "in the baseline") : null),
    sourceView(finding.places),
    story(finding),
    happenings(finding),
    finding.replay ? section("Replay", command(`pmvet replay ${finding.replay}`)) : null,
    finding.recovery ? section("Recovery", recovery(finding.recovery)) : null,
    crash ? section("Crash image", image(crash)) : null,
    finding.diff && finding.diff.length ? section("Bytes that differ", bytesView(finding.diff)) : null,
    finding.race ? section("Locks", race(finding.race)) : null,
    node ? section("Where in the failure points", icicleView(node)) : null,
    first && first.pm ? section("Data", el("p", {}, first.pm.object ? [el("code", {}, first.pm.object), ", "] : null,
      `${first.pm.len} bytes at offset ${first.pm.offset} of ${first.pm.file}`)) : null,
    section("Stacks", finding.places.filter((place) => place.stack.length).map((place) =>
      [el("p", { class: "of" }, place.thread ? `Thread ${place.thread}: ` : null, prose(place.label)), stackView(place.stack)])),
    about(finding),
    el("p", { class: "note" }, "fingerprint ", el("code", {}, finding.fingerprint)),
  ];
}

/** What happened in PM: by threads for a race, else by cache lines. */
function happenings(finding) {
  const timeline = finding.timeline;
  if (!timeline || !timeline.steps.length) return null;
  const lanes = finding.race || finding.rule === "persistency-race" ? lanesView(finding) : null;
  if (lanes) return section("The race, event by event", lanes);
  return timeline.lanes.length ? section("Timeline of the cache lines", timelineView(timeline)) : null;
}

function story(finding) {
  const rows = [["Expected", finding.expected], ["Happened", finding.happened], ["Fix", finding.fix], ["Caveat", finding.caveat]];
  return el("dl", { class: "story" }, rows.filter(([, text]) => text).map(([name, text]) =>
    [el("dt", { class: name.toLowerCase() }, name), el("dd", { class: name.toLowerCase() }, prose(text))]));
}

function command(text) {
  return el("div", { class: "command" }, el("code", {}, text), copyButton(text));
}

function recovery(result) {
  return [
    el("p", {}, el("code", {}, result.command), ` ${result.outcome}; without a crash it ${result.expected} (${duration(result.seconds)}).`),
    result.output ? el("pre", { tabindex: 0, role: "group", "aria-label": "Output of the recovery" }, result.output) : el("p", { class: "note" }, "It printed nothing."),
    result.oracle ? [el("p", {}, "The oracle:"), el("pre", { tabindex: 0, role: "group", "aria-label": "Output of the oracle" }, result.oracle)] : null,
    result.stack.length ? [el("p", { class: "of" }, "Where it was when it failed:"), stackView(result.stack)] : null,
  ];
}

function image(crash) {
  const store = (place) => el("li", {}, place.pm && place.pm.object ? [el("code", {}, place.pm.object), " by "] : null,
    el("code", {}, place.frame === null ? "?" : data.frames[place.frame].label));
  const list = (title, places, total) => places.length
    ? [el("p", { class: "of" }, title), el("ul", {}, places.map(store),
      total > places.length ? el("li", {}, `and ${total - places.length} more`) : null)] : null;
  return [
    el("p", {}, prose(crash.choice)),
    list("Stores that it leaves out:", crash.lost, crash.lost.length),
    list("Stores that were not persistent yet:", crash.unpersisted, crash.unpersistedTotal),
  ];
}

function race(locks) {
  const held = (names) => (names.length ? names.map((name, index) => [index ? ", " : null, prose(name)]) : "none");
  return [
    el("p", {}, "Held at the store: ", held(locks.storeLocks), "; at the load: ", held(locks.loadLocks), "."),
    el("p", {}, locks.observed ? "In this run the load came between the store and its persist."
      : "Not seen in this run; another schedule may show it."),
  ];
}

function about(finding) {
  const rule = data.rules[finding.rule];
  if (!rule) return null;
  return el("details", { class: "part" }, el("summary", {}, `About the rule ${finding.rule}`), el("pre", { class: "page", tabindex: 0, role: "group", "aria-label": `About the rule ${finding.rule}` }, rule.page));
}
