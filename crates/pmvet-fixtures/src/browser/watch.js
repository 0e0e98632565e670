// Runs before the page's own script: notes everything that must not happen.
window.pmvetTrouble = [];
window.addEventListener("error", (event) => pmvetTrouble.push(`error: ${event.message}`));
window.addEventListener("unhandledrejection", (event) => pmvetTrouble.push(`rejection: ${event.reason}`));
document.addEventListener("securitypolicyviolation", (event) => pmvetTrouble.push(`request: ${event.blockedURI}`));

// Runs a test in the page, and writes what it has checked into the page, where --dump-dom shows it.
window.pmvetTest = async (test) => {
  const results = [];
  const check = (name, good, seen) => results.push(`${good ? "ok" : "FAIL"} ${name}${good ? "" : `: ${JSON.stringify(seen)}`}`);
  try {
    await test(check);
    check("no trouble", pmvetTrouble.length === 0, pmvetTrouble);
  } catch (error) {
    results.push(`FAIL exception: ${error.stack}`);
  }
  const out = document.createElement("pre");
  out.id = "pmvet-results";
  out.textContent = `\n${results.join("\n")}\nend of results\n`;
  document.body.append(out);
};
