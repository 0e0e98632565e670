// A race: a row per thread, a column per event in the order of the run, the time in which a value is read too early, and the locks.

const ROLE_EVENTS = { store: "stored", load: "loaded", fence: "fenced", flush: "flushed", lock: "locked", "side-effect": "acted" };
const LANE_KINDS = { stored: "dirty", overwritten: "dirty", loaded: "read", acted: "act", persisted: "persistent", fenced: "persistent" };

/** The events of a race in order: the steps of its timeline with the labels of its places, and places without a step. */
function laneEvents(finding) {
  const events = finding.timeline.steps.map((step, index) => ({ index, seq: BigInt(step.seq), thread: step.thread, what: step.what, frame: step.frame, text: "" }));
  for (const place of finding.places) {
    const what = ROLE_EVENTS[place.role];
    if (!what || place.seq === null || place.thread === null) continue;
    const seq = BigInt(place.seq);
    const known = events.find((event) => event.seq === seq && event.thread === place.thread && event.what !== "crash");
    if (!known) events.push({ index: events.length, seq, thread: place.thread, what, frame: place.frame, text: place.label });
    else if (!known.text) known.text = place.label;
  }
  const crash = (event) => (event.what === "crash" ? 1 : 0);
  return events.sort((a, b) => crash(a) - crash(b) || (a.seq < b.seq ? -1 : a.seq > b.seq ? 1 : a.index - b.index));
}

function lanesView(finding) {
  const events = laneEvents(finding);
  const from = events.findIndex((event) => event.what === "stored");
  if (from < 0) return null;
  const writer = events[from].thread;
  let to = events.findIndex((event, index) => index > from && ["persisted", "overwritten", "crash"].includes(event.what));
  if (to < 0) to = events.length;
  const early = events.slice(from, to).some((event) => event.what === "loaded");
  const late = early ? null : events.find((event) => event.what === "loaded");
  // What this run did not show is drawn where another schedule would put it.
  if (late) {
    events.splice(from + 1, 0, { thread: late.thread, what: "may load", frame: late.frame, text: "in another schedule", ghost: true });
    to += 1;
  }
  const inWindow = (index) => index >= from && index < to;
  const reads = (thread) => events.some((event) => event.thread === thread && ["loaded", "may load"].includes(event.what));
  const threads = [...new Set(events.map((event) => event.thread))];
  const head = el("tr", {}, el("th", { scope: "col" }, "thread"), events.map((event, index) =>
    el("th", { scope: "col", class: event.what === "crash" ? "crash" : inWindow(index) ? "window" : null },
      event.ghost ? "possible" : event.what === "crash" ? "crash" : `#${event.seq}`)));
  const rows = threads.flatMap((thread) => [
    el("tr", {}, el("th", { scope: "row" }, `thread ${thread}`,
      el("span", { class: "where" }, thread === writer ? "stores" : reads(thread) ? "reads" : "")),
    events.map((event, index) => laneCell(event, event.thread === thread, inWindow(index)))),
    ...lockRows(finding, thread, writer, events, inWindow),
  ]);
  const marks = [["window", "the value is not persistent"], ["dirty", "store"], ["read", "read"]];
  if (events.some((event) => event.what === "acted")) marks.push(["act", "what depends on the value"]);
  if (events.some((event) => LANE_KINDS[event.what] === "persistent")) marks.push(["persistent", "fence or persist"]);
  if (finding.race && finding.race.storeLocks.concat(finding.race.loadLocks).length) marks.push(["lock", "a lock is held"]);
  if (late) marks.push(["ghost", "possible, not seen in this run"]);
  return [
    el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Threads, event by event" },
      el("table", { class: "lanes" }, el("thead", {}, head), el("tbody", {}, rows))),
    legend(marks, events.some((event) => event.what === "crash") ? [["red column", "the crash: what the writer had not persisted is lost"]] : []),
  ];
}

function laneCell(event, here, inWindow) {
  const crash = event.what === "crash";
  const classes = [inWindow ? "window" : "", crash ? "crash" : ""].join(" ").trim() || null;
  if (!here || crash) return el("td", { class: classes }, crash ? "✗" : null);
  return el("td", { class: classes }, el("div", { class: `event ${event.ghost ? "ghost" : LANE_KINDS[event.what] || ""}` },
    el("span", { class: "what" }, event.what), whereView(event.frame), event.text ? el("span", { class: "text" }, prose(event.text)) : null));
}

/** A row per lock of a thread, filled from where it is taken to where it is given back, or at the access alone if that is not known. */
function lockRows(finding, thread, writer, events, inWindow) {
  if (!finding.race) return [];
  const isWriter = thread === writer;
  const what = isWriter ? "stored" : "loaded";
  const at = events.findIndex((event) => event.thread === thread && event.what === what);
  if (at < 0) return [];
  const names = isWriter ? finding.race.storeLocks : finding.race.loadLocks;
  const row = (title, isHeld, text) => el("tr", { class: "locks" }, el("th", { scope: "row" }, title),
    events.map((event, index) => el("td", { class: [inWindow(index) ? "window" : "", event.what === "crash" ? "crash" : ""].join(" ").trim() || null },
      isHeld(event, index) ? el("div", { class: "lock" }, index === at ? text : "held") : null)));
  const lockRow = (name) => {
    const span = finding.race.spans.find((span) => span.thread === thread && span.lock === name);
    if (!span) return row(prose(name), (event, index) => index === at, "held");
    const [from, to] = [BigInt(span.from), span.to === null ? null : BigInt(span.to)];
    const isHeld = (event, index) => index === at || (!event.ghost && event.what !== "crash" && event.seq >= from && (to === null || event.seq <= to));
    return row(prose(name), isHeld, to === null ? `held since #${from}` : `held from #${from} to #${to}`);
  };
  return names.length ? names.map(lockRow) : [row("no lock", () => false)];
}
