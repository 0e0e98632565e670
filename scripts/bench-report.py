#!/usr/bin/env python3
"""Measures the longest pauses of a report page with 10,000 findings while it opens, scrolls and filters.

    scripts/bench-report.py [FINDINGS]      default: 10000

Needs Chromium, and cargo to make the page. A pause is the time between two frames, less that of one frame. A task is one
that the browser's own observer of long tasks (more than 50 ms) reports.
"""

import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FRAME_MS = 1000 / 60

MEASURE = """
(async () => {
  const tasks = [];
  new PerformanceObserver((list) => list.getEntries().forEach((entry) => tasks.push(entry))).observe({ type: "longtask", buffered: true });
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const list = document.querySelector("#list");
  const text = document.querySelector("#text");
  const type = (value) => { text.value = value; text.dispatchEvent(new Event("input", { bubbles: true })); };
  const pick = (id, value) => { const select = document.querySelector(id); select.value = value; select.dispatchEvent(new Event("change", { bubbles: true })); };
  const measure = async (steps) => {
    const begin = performance.now();
    let longest = 0, work = 0, last = await frame();
    for (const step of steps) {
      const before = performance.now();
      step();
      document.body.offsetHeight;
      work = Math.max(work, performance.now() - before);
      const now = await frame();
      longest = Math.max(longest, now - last);
      last = now;
    }
    await new Promise((done) => setTimeout(done, 100));
    const own = tasks.filter((task) => task.startTime >= begin).map((task) => task.duration);
    return { frames: steps.length, longest, work, task: Math.max(0, ...own), rows: document.querySelectorAll("#rows .row").length };
  };
  await frame();
  await frame();
  const opening = Math.max(0, ...tasks.map((task) => task.duration));
  const positions = Array.from({ length: 300 }, (_, at) => () => { list.scrollTop = (list.scrollHeight * at) / 300; });
  const words = ["r", "re", "rec", "reco", "recov", "recove", "recover", "recovery", "recovery f", "part 9", "part", "p", "", "no such thing", ""];
  const results = { findings: JSON.parse(document.querySelector("#data").textContent).findings.length, opening };
  results.scrolling = await measure(positions);
  results.filtering = await measure(words.map((word) => () => type(word)));
  results.sorting = await measure([["#sort", "title"], ["#sort", "file"], ["#sort", "count"], ["#group", "file"], ["#group", ""], ["#group", "rule"], ["#sort", "severity"]]
    .map(([id, value]) => () => pick(id, value)));
  console.log(`pmvet-bench ${JSON.stringify(results)}`);
})();
"""


def measured(page, folder):
    chromium = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-dev-shm-usage"]
    chromium += ["--enable-logging=stderr", "--remote-debugging-port=0", f"--user-data-dir={folder}/profile", "--window-size=1280,900", f"file://{page}"]
    with subprocess.Popen(chromium, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace") as browser:
        try:
            for line in browser.stderr:
                found = re.search(r"pmvet-bench (\{.*\})", line)
                if found:
                    return json.loads(found[1].replace('\\"', '"'))
        finally:
            browser.terminate()
    sys.exit("bench-report.py: Chromium ended before the page was measured")


def main():
    findings = sys.argv[1] if len(sys.argv) > 1 else "10000"
    with tempfile.TemporaryDirectory(prefix="pmvet-bench-") as folder:
        make = ["cargo", "run", "--quiet", "--release", "-p", "pmvet-report", "--example", "many_findings", findings, findings, folder]
        subprocess.run(make, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        page = os.path.join(folder, "findings.html")
        with open(page, encoding="utf-8") as file:
            text = file.read()
        with open(page, "w", encoding="utf-8") as file:
            file.write(text.replace("</body>", f"<script>{MEASURE}</script></body>", 1))
        results = measured(page, folder)
    print(f"the page of a report with {results['findings']} findings: {len(text) / 1e6:.1f} MB, opens with a task of {results['opening']:.0f} ms")
    for name in ["scrolling", "filtering", "sorting"]:
        one = results[name]
        pause = max(0, one["longest"] - FRAME_MS)
        print(f"  {name:10} {one['frames']:4} steps, longest step {one['work']:5.1f} ms, longest pause {pause:5.1f} ms, longest task {one['task']:4.0f} ms, {one['rows']} rows in the page")


main()
