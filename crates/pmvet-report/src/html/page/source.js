// Lines of source with marks, and stacks.

/** The places of a finding, by file, each with the lines around it. */
function sourceView(places) {
  const files = new Map();
  const bare = [];
  const several = new Set(places.map((place) => place.thread)).size > 1;
  places.forEach((place, index) => {
    const frame = data.frames[place.frame];
    const lines = frame && frame.file && data.lines[frame.file];
    if (!lines || !(frame.line in lines)) return bare.push({ place, frame, index });
    if (!files.has(frame.file)) files.set(frame.file, []);
    files.get(frame.file).push({ place, frame, index });
  });
  return [
    ...[...files].map(([file, marks]) => sourceFile(file, marks, several)),
    ...bare.map(({ place, frame }) => el("p", { class: "bare" },
      el("code", {}, frame ? frame.label : "unknown place"), " — ", prose(place.label))),
  ];
}

function sourceFile(file, marks, several) {
  const available = data.lines[file];
  const near = new Set();
  for (const { frame } of marks) {
    for (let line = frame.line - 3; line <= frame.line + 3; line++) if (line in available) near.add(line);
  }
  const rows = [];
  let previous = null;
  for (const line of [...near].sort((a, b) => a - b)) {
    if (previous !== null && line > previous + 1) rows.push(el("div", { class: "gap" }, "⋯"));
    previous = line;
    const here = marks.filter((mark) => mark.frame.line === line);
    const kind = here.some((mark) => mark.index === 0) ? "line primary" : here.length ? "line marked" : "line";
    rows.push(el("div", { class: kind }, el("span", { class: "number" }, line), el("code", {}, available[line] || " ")));
    for (const { place, index } of here) {
      const thread = several && place.thread ? `thread ${place.thread}: ` : "";
      rows.push(el("div", { class: index === 0 ? "label primary" : "label" }, "↑ ", thread, prose(place.label)));
    }
  }
  return el("figure", { class: "source" }, el("figcaption", {}, file),
    el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": `Source of ${file}` },
      el("div", { class: "code" }, rows)));
}

function stackView(stack) {
  const frames = stack.map((index) => data.frames[index]);
  const user = frames.filter((frame) => frame.user);
  const shown = user.length ? user : frames;
  const list = el("ol", { class: "stack" }, shown.map((frame) => el("li", {}, el("code", {}, frame.label))));
  if (shown.length === frames.length) return list;
  const hidden = frames.length - shown.length;
  const button = el("button", { type: "button", class: "quiet" }, `show ${plural(hidden, "library frame", "library frames")}`);
  button.addEventListener("click", () => {
    replace(list, frames.map((frame) => el("li", { class: frame.user ? null : "library" }, el("code", {}, frame.label))));
    button.remove();
  });
  return [list, button];
}
