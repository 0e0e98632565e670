// Elements. Text goes in by textContent only: nothing from the target is ever parsed as HTML.

const byId = (id) => document.getElementById(id);

/** el("p", { class: "x", onclick: f }, "text", child, null) */
function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

function replace(element, ...children) {
  element.textContent = "";
  append(element, children);
}

const plural = (count, one, many) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

function duration(seconds) {
  if (seconds >= 90) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return seconds >= 10 ? `${seconds.toFixed(0)} s` : `${seconds.toFixed(2)} s`;
}

/** Text in which `backquoted` parts are code. */
function prose(text) {
  return text.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part));
}

function section(title, ...children) {
  return el("section", { class: "part" }, el("h3", {}, title), ...children);
}

function copyButton(text) {
  const button = el("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}
