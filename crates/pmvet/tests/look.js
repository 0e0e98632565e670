// Looks at the overview and at every finding, light and dark, for what breaks the rules of accessibility.
pmvetTest(async (check) => {
  const turn = () => new Promise((done) => setTimeout(done, 60));
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
});
