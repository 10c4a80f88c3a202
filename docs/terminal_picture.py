"""Draw what a command prints at a terminal as an SVG, for README and docs.

    python docs/terminal_picture.py docs/pictures/run.svg --folder examples \\
        -- ridgeline run train_slow_loader.py

The command runs at a pseudo-terminal, so that it prints what a person sees, in colour. The picture
names no font file on the network. The program's own output above ours is left out with `--after`.
"""

import argparse
import os
import pty
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("."), help="where the command runs")
    parser.add_argument("--columns", type=int, default=104)
    parser.add_argument("--after", default="", help="begin at the first line with this text")
    parser.add_argument("--drop", action="append", default=[], help="omit lines with this text")
    parser.add_argument("--shown", default="", help="the command as the picture shows it")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    printed = terminal_output(given.command, given.folder, given.columns)
    lines = printed.replace("\r\n", "\n").split("\n")
    if given.after:
        start = next((i for i, line in enumerate(lines) if given.after in line), 0)
        lines = lines[start:]
    kept = [line for line in lines if not any(text in line for text in given.drop)]
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(
        drawn(["$ " + (given.shown or " ".join(given.command)), "", *kept], given.columns)
    )
    return 0


def terminal_output(command: list[str], folder: Path, columns: int) -> str:
    """Return what the command writes to a pseudo-terminal, with its colours."""
    ours, theirs = pty.openpty()
    environment = os.environ | {
        "COLUMNS": str(columns), "TERM": "xterm-256color", "COLORTERM": "truecolor",
        "PYTHONIOENCODING": "utf-8",
    }  # fmt: skip
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=theirs, stderr=theirs,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(theirs)
    pieces = []
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the last writer has closed the terminal
            break
        if not piece:
            break
        pieces.append(piece)
    process.wait()
    return b"".join(pieces).decode("utf-8", "replace")


def drawn(lines: list[str], columns: int) -> str:
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi("\n".join(lines).rstrip()), soft_wrap=False)
        return console.export_svg(title="", code_format=SVG, unique_id="terminal")


if __name__ == "__main__":
    sys.exit(main())
