// Bytes that differ between two images.

const PER_ROW = 16;

function bytesView(diffs) {
  return [diffs.map((diff) => {
    const base = BigInt(`0x${diff.offset}`);
    const length = Math.max(diff.before.length, diff.after.length);
    const rows = [];
    for (let from = 0; from < length; from += PER_ROW) {
      const address = `0x${(base + BigInt(from)).toString(16)}`;
      rows.push(hexRow(address, "expected", diff.before, diff.after, from));
      rows.push(hexRow("", "crash image", diff.after, diff.before, from));
    }
    return el("figure", { class: "bytes" },
      el("figcaption", {}, diff.object ? [el("code", {}, diff.object), " in "] : null, diff.file),
      el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Bytes" },
        el("table", {}, el("tbody", {}, rows))));
  }), legend([["ok", "differs: as expected"], ["failed", "differs: in the crash image"]], [["·", "no printable character"]])];
}

function hexRow(address, name, bytes, others, from) {
  const hex = [];
  let text = "";
  for (let at = from; at < from + PER_ROW; at++) {
    const byte = bytes[at];
    if (byte === undefined) break;
    const digits = byte.toString(16).padStart(2, "0");
    hex.push(byte === others[at] ? `${digits} ` : [el("mark", {}, digits), " "]);
    text += byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "·";
  }
  return el("tr", { class: name === "expected" ? "expected" : "actual" },
    el("td", { class: "name" }, address), el("th", { scope: "row" }, name), el("td", {}, hex), el("td", { class: "ascii" }, text));
}
