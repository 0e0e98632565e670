// The failure points by call path: callers above, width by number, colour by what recovery made of them.

const MAX_LEVELS = 24;
const LEVEL = 25;
const VERDICTS = [["failed", "recovery failed"], ["ok", "recovered"], ["not-tried", "not tried"]];

const tree = data.tree && data.tree.map(([parent, label, ok, failed, notTried], index) =>
  ({ index, parent, label, ok, failed, notTried, total: ok + failed + notTried, children: [] }));
const roots = [];
if (tree) tree.forEach((node) => (node.parent === null ? roots : tree[node.parent].children).push(node));

/** The node that a stack (innermost first) ends at. The tree may leave libraries out. */
function findNode(stack) {
  let level = roots;
  let found = null;
  for (const index of [...stack].reverse()) {
    const next = level.find((node) => node.label === data.frames[index].label);
    if (!next && data.frames[index].user) return null;
    if (!next) continue;
    found = next;
    level = next.children;
  }
  return found;
}

function icicleView(marked) {
  const path = new Set();
  for (let node = marked; node; node = node.parent === null ? null : tree[node.parent]) path.add(node);
  const box = el("div", { class: "icicle", role: "group", "aria-label": "Failure points by call path" });
  const note = el("p", { class: "note" });
  const draw = (zoomed) => {
    replace(box);
    let deepest = 0;
    let cut = false;
    const place = (nodes, left, width, level) => {
      const total = nodes.reduce((sum, node) => sum + node.total, 0);
      for (const node of nodes) {
        const share = total ? (node.total / total) * width : 0;
        if (share < 0.3) { left += share; continue; }
        if (level >= MAX_LEVELS) { cut = true; return; }
        deepest = Math.max(deepest, level);
        box.append(cell(node, left, share, level, path.has(node), () => draw(zoomed === node ? null : node)));
        const below = node.children.reduce((sum, child) => sum + child.total, 0);
        place(node.children, left, node.total ? (share * below) / node.total : 0, level + 1);
        left += share;
      }
    };
    place(zoomed ? [zoomed] : roots, 0, 100, 0);
    box.style.height = `${(deepest + 1) * LEVEL}px`;
    note.textContent = zoomed ? "Click the top cell to zoom out." : "Click a cell to zoom in.";
    if (cut) note.textContent += " Deeper levels are not drawn: zoom in.";
  };
  draw(null);
  return [box, legend(VERDICTS, marked ? [["bold", "this finding"]] : []), note];
}

function cell(node, left, width, level, marked, onclick) {
  const summary = `${node.label}: ${node.failed} failed, ${node.ok} recovered, ${node.notTried} not tried`;
  const button = el("button", { type: "button", class: marked ? "cell marked" : "cell", title: summary, "aria-label": summary,
    onclick }, el("span", {}, node.label));
  const failed = (100 * node.failed) / node.total;
  const ok = failed + (100 * node.ok) / node.total;
  button.style.left = `${left}%`;
  button.style.width = `${width}%`;
  button.style.top = `${level * LEVEL}px`;
  button.style.backgroundImage = "linear-gradient(90deg, var(--failed) " + `${failed}%, var(--ok) ${failed}% ${ok}%, `
    + `var(--not-tried) ${ok}%)`;
  return button;
}
