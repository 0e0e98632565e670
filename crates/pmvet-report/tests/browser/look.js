// Looks at the overview and at every finding, light and dark, for what breaks the rules of accessibility.
(async () => {
  const results = [];
  const check = (name, good, seen) => results.push(`${good ? "ok" : "FAIL"} ${name}${good ? "" : `: ${JSON.stringify(seen)}`}`);
  const turn = () => new Promise((done) => setTimeout(done, 60));
  try {
    const data = JSON.parse(document.querySelector("#data").textContent);
    document.head.append(Object.assign(document.createElement("style"), { textContent: "* { transition: none !important; }" }));
    for (const hash of ["overview", ...data.findings.map((finding) => finding.fingerprint)]) {
      location.hash = `#${encodeURIComponent(hash)}`;
      await turn();
      for (const theme of ["light", "dark"]) {
        document.documentElement.dataset.theme = theme;
        const broken = pmvetAccessibility();
        check(`${hash}, ${theme}`, broken.length === 0, broken.slice(0, 8));
      }
      check("not wider than the window", document.documentElement.scrollWidth <= innerWidth, document.documentElement.scrollWidth);
    }
    check("no trouble", pmvetTrouble.length === 0, pmvetTrouble);
  } catch (error) {
    results.push(`FAIL exception: ${error.stack}`);
  }
  const out = document.createElement("pre");
  out.id = "pmvet-results";
  out.textContent = `\n${results.join("\n")}\nend of results\n`;
  document.body.append(out);
})();
