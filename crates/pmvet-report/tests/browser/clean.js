// What a run without findings shows, with the sentence that it has to begin with in `said`.
pmvetTest(async (check) => {
  const main = document.querySelector("#main");
  const box = main.getBoundingClientRect();
  check("the overview is in sight at once", box.width > 0 && main.querySelector("h2").textContent === "Overview", box.width);
  check("it says so", main.querySelector(".verdict").textContent.startsWith(said), main.querySelector(".verdict").textContent);
  const broken = pmvetAccessibility();
  check("accessible", broken.length === 0, broken);
});
