#!/usr/bin/env python3
"""Makes the picture of a terminal session in README and book from real output. A test, `pictures.rs`, makes those of the report.

    scripts/pictures.py [FOLDER]        default: docs/book/src/pictures

Needs a built pmvet in target/release and a C compiler. Run it when the output has changed.
"""

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMMAND = ["pmvet", "vet", "--", "./ledger", "/dev/shm/ledger", "5"]
WIDTH, LINE_HEIGHT, CHARACTER = 880, 18, 8.43
COLOURS = {"30": "#0b1021", "31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "34": "#79c0ff", "35": "#d2a8ff", "36": "#76e3ea", "37": "#e6edf3"}


def spans(line):
    """The text of a line with its SGR sequences as (text, colour, bold)."""
    colour, bold = None, False
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if not part.startswith("\x1b["):
            if part:
                yield part, colour, bold
            continue
        for code in part[2:-1].split(";"):
            if code in ("", "0"):
                colour, bold = None, False
            elif code == "1":
                bold = True
            elif code in COLOURS:
                colour = COLOURS[code]
            elif code.startswith("9") and "3" + code[1:] in COLOURS:
                colour = COLOURS["3" + code[1:]]


def svg(lines):
    height = 40 + LINE_HEIGHT * len(lines) + 14
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="14">',
        "<title>pmvet vet finds a crash bug in ledger.c</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#0d1117"/>',
        '<circle cx="20" cy="18" r="6" fill="#ff5f57"/><circle cx="40" cy="18" r="6" fill="#febc2e"/><circle cx="60" cy="18" r="6" fill="#28c840"/>',
    ]
    for number, line in enumerate(lines):
        at, y = 0, 48 + LINE_HEIGHT * number
        for text, colour, bold in spans(line):
            weight = ' font-weight="bold"' if bold else ""
            if text.strip():
                out.append(
                    f'<text x="{14 + at * CHARACTER:.1f}" y="{y}" textLength="{len(text) * CHARACTER:.1f}" xml:space="preserve" '
                    f'fill="{colour or "#e6edf3"}"{weight}>{html.escape(text)}</text>'
                )
            at += len(text)
    return "\n".join(out) + "\n</svg>\n"


def main():
    to = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "docs/book/src/pictures"))
    os.makedirs(to, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pmvet-pictures-") as folder:
        shutil.copy(os.path.join(ROOT, "docs/book/src/tutorial/ledger.c"), folder)
        path = os.path.join(ROOT, "target/release") + os.pathsep + os.environ["PATH"]
        here = {"cwd": folder, "env": {**os.environ, "PATH": path}}
        subprocess.run(["cc", "-g", "-O2", "-o", "ledger", "ledger.c"], check=True, **here)
        coloured = COMMAND[:2] + ["--color", "always"] + COMMAND[2:]
        run = subprocess.run(coloured, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **here)
        lines = ["\x1b[1;32m$\x1b[0m \x1b[1m" + " ".join(COMMAND) + "\x1b[0m"]
        lines += run.stdout.rstrip("\n").split("\n")
        with open(os.path.join(to, "session.svg"), "w") as file:
            file.write(svg(lines))
    print(f"{to}/session.svg")


main()
