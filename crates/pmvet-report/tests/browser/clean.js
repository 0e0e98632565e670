// What a run without findings shows, with the sentence that it has to begin with in `said`.
(async () => {
  const results = [];
  const check = (name, good, seen) => results.push(`${good ? "ok" : "FAIL"} ${name}${good ? "" : `: ${JSON.stringify(seen)}`}`);
  const main = document.querySelector("#main");
  try {
    const box = main.getBoundingClientRect();
    check("the overview is in sight at once", box.width > 0 && main.querySelector("h2").textContent === "Overview", box.width);
    check("it says so", main.querySelector(".verdict").textContent.startsWith(said), main.querySelector(".verdict").textContent);
    const broken = pmvetAccessibility();
    check("accessible", broken.length === 0, broken);
    check("no trouble", pmvetTrouble.length === 0, pmvetTrouble);
  } catch (error) {
    results.push(`FAIL exception: ${error.stack}`);
  }
  const out = document.createElement("pre");
  out.id = "pmvet-results";
  out.textContent = `\n${results.join("\n")}\nend of results\n`;
  document.body.append(out);
})();
