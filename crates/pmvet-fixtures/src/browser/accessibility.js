// Rules of WCAG 2.2 (A and AA) that a page like ours can break, checked on what is in sight now. Returns what breaks them.
window.pmvetAccessibility = () => {
  const found = new Set();
  const name = (element) => `${element.localName}${element.id ? `#${element.id}` : ""}${element.className ? `.${String(element.className).trim().replace(/\s+/g, ".")}` : ""}`;
  const report = (rule, element, more) => found.add(`${rule}: ${name(element)}${more ? ` (${more})` : ""}`);
  const isVisible = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }) && element.getClientRects().length > 0;
  const visible = (selector) => [...document.body.querySelectorAll(selector)].filter((element) => element.id !== "pmvet-results" && isVisible(element));

  // --- contrast (1.4.3)
  const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number); return { r, g, b, a }; };
  const over = (top, below) => ({ r: top.r * top.a + below.r * (1 - top.a), g: top.g * top.a + below.g * (1 - top.a), b: top.b * top.a + below.b * (1 - top.a), a: 1 });
  const luminance = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const contrast = (a, b) => { const [x, y] = [luminance(a), luminance(b)].sort((m, n) => n - m); return (x + 0.05) / (y + 0.05); };
  /** All colours that may be behind an element's text. */
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      const gradient = style.backgroundImage.match(/rgba?\([^)]*\)/g);
      layers.push(gradient ? gradient.map(parse) : [parse(style.backgroundColor)]);
      if (layers.at(-1).every((colour) => colour.a === 1)) break;
    }
    const canvas = document.documentElement.dataset.theme === "dark" ? { r: 18, g: 18, b: 18, a: 1 } : { r: 255, g: 255, b: 255, a: 1 };
    return layers.reverse().reduce((below, layer) => layer.flatMap((top) => below.map((colour) => over(top, colour))), [canvas]);
  };
  const checkContrast = (element, style) => {
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const needed = isLarge ? 3 : 4.5;
    for (const background of behind(element)) {
      const ratio = contrast(over(parse(style.color), background), background);
      if (ratio < needed) report("contrast", element, `${ratio.toFixed(2)} of ${needed}`);
    }
  };
  for (const element of visible("*")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    if (hasText && !["option", "script", "style"].includes(element.localName)) checkContrast(element, getComputedStyle(element));
    if (element.placeholder) checkContrast(element, getComputedStyle(element, "::placeholder"));
  }

  // --- names of controls (4.1.2), texts for pictures (1.1.1)
  const byIds = (ids) => ids.split(/\s+/).map((id) => document.getElementById(id)?.textContent ?? "").join(" ");
  const nameOf = (element) => (element.getAttribute("aria-label") || byIds(element.getAttribute("aria-labelledby") || "")
    || [...(element.labels || [])].map((label) => label.firstChild.textContent).join(" ")
    || (["input", "select", "meter"].includes(element.localName) ? "" : element.textContent) || element.title || "").trim();
  for (const element of visible("button, a, input, select, textarea, summary, meter, dialog, section, [role], [tabindex]")) {
    if (!["none", "presentation"].includes(element.getAttribute("role")) && !nameOf(element)) report("no name", element);
  }
  for (const element of visible("img:not([alt]), svg:not([aria-hidden]), canvas")) report("no text for a picture", element);

  // --- structure (1.3.1, 2.4.1, 2.4.2, 3.1.1)
  if (!document.documentElement.lang) report("no language", document.documentElement);
  if (!document.title.trim()) report("no title", document.documentElement);
  const headings = visible("h1, h2, h3, h4, h5, h6").filter((heading) => !heading.closest("dialog"));
  if (headings.filter((heading) => heading.localName === "h1").length !== 1) report("not one h1", document.body);
  headings.reduce((previous, heading) => {
    const level = Number(heading.localName[1]);
    if (level > previous + 1) report("a level of headings is skipped", heading, heading.textContent);
    if (!heading.textContent.trim()) report("an empty heading", heading);
    return level;
  }, 0);
  for (const landmark of ["main", "body > header"]) if (visible(landmark).length !== 1) report("not one of its kind", document.body, landmark);
  for (const child of document.body.children) {
    if (isVisible(child) && !["header", "main", "dialog", "script"].includes(child.localName) && child.id !== "pmvet-results") report("outside of all landmarks", child);
  }
  const children = { ul: ["li"], ol: ["li"], dl: ["dt", "dd"] };
  for (const list of visible("ul, ol, dl")) {
    for (const child of list.children) if (!children[list.localName].includes(child.localName)) report("not in a list", child);
  }
  for (const cell of visible("th")) {
    if (!cell.scope) report("a head of what?", cell, cell.textContent);
    if (!cell.textContent.trim()) report("an empty head", cell);
  }
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) report("the same id twice", document.getElementById(id));

  // --- roles and states (4.1.2)
  const generic = ["div", "span", "p", "pre", "code", "b", "i", "strong", "td"];
  for (const element of visible("[aria-label]")) {
    if (generic.includes(element.localName) && !element.hasAttribute("role")) report("a name for what has no role", element);
  }
  const expandable = ["button", "treeitem", "combobox", "row", "tab", "link"];
  for (const element of visible("[aria-expanded]")) {
    if (!expandable.includes(element.getAttribute("role") || element.localName)) report("cannot be expanded", element);
  }
  for (const element of visible("[aria-selected]")) {
    if (!["option", "treeitem", "tab", "row", "gridcell"].includes(element.getAttribute("role"))) report("cannot be selected", element);
  }
  for (const item of visible("[role=treeitem]")) if (!item.closest("[role=tree]")) report("an item of no tree", item);
  for (const tree of visible("[role=tree]")) if (!tree.querySelector("[role=treeitem]")) report("a tree without items", tree);
  for (const attribute of ["aria-activedescendant", "aria-labelledby", "aria-controls", "aria-describedby"]) {
    for (const element of visible(`[${attribute}]`)) {
      for (const id of element.getAttribute(attribute).split(/\s+/)) if (!document.getElementById(id)) report("leads nowhere", element, attribute);
    }
  }

  // --- the keyboard gets everywhere (2.1.1), in the order of the page (2.4.3)
  const focusable = "button, a[href], input, select, textarea, summary, [tabindex='0']";
  for (const element of visible("*")) {
    const style = getComputedStyle(element);
    const scrolls = (overflow, inside, outside) => ["auto", "scroll"].includes(overflow) && inside > outside + 1;
    if ((scrolls(style.overflowX, element.scrollWidth, element.clientWidth) || scrolls(style.overflowY, element.scrollHeight, element.clientHeight))
      && !element.matches(focusable)) report("scrolls without a keyboard", element);
    const reachable = element.closest(focusable) || element.closest("[role=treeitem]") || element.closest("label");
    if (style.cursor === "pointer" && !reachable) report("a mouse only", element);
    if (element.tabIndex > 0) report("before its turn", element);
  }
  return [...found];
};
