"""How fast the timeline of a page is: making the page, its size, and frames while panning.

    python benchmarks/page.py [--megabytes N] [--out FILE] [TRACE…]

Without a trace it makes one of 200 MB and 1.9 million events, of which the page holds as many as it
may. "First paint" is what the browser reports: from opening the file to the first text on the
screen. A headless
Chromium without a GPU opens the page; at three zooms, 120 frames are drawn while the view moves.
"ms of script" is the time that our code takes for a frame, measured with performance.now;
"frames/s" also contains drawing by the browser, and depends on what else the machine does. Exit 1
where a page is larger than its limit, or our code alone would not allow 30 frames a second.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

import ridgeline
from ridgeline.cli.output import formatted
from ridgeline.records.timeline import TracePage
from ridgeline.report.views.trace import trace_report
from ridgeline.trace.study import study
from ridgeline.trace.timeline import timeline

FRAMES = 120
MIN_FRAMES_PER_S = 30.0
MAX_PAGE_BYTES = 5_000_000
MAX_FIRST_PAINT_MS = 1_500.0
MADE_MEGABYTES = 200.0
MADE_OPERATORS, MADE_STEPS_PER_MEGABYTE = 1_500, 1.55
ZOOMS = {"all": 0, "a part": 6, "close": 14}
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--no-first-run")  # fmt: skip
PAN = """async ([frames, zooms]) => {
  const canvas = document.querySelector(".lanes canvas");
  canvas.scrollIntoView();
  const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const ask = window.requestAnimationFrame.bind(window);
  let script = 0;
  window.requestAnimationFrame = (draw) => ask((now) => {
    const began = performance.now();
    draw(now);
    script += performance.now() - began;
  });
  press("0");
  for (let i = 0; i < zooms; i++) press("w");
  await new Promise(ask);
  script = 0;
  const began = performance.now();
  for (let i = 0; i < frames; i++) {
    press(i % 40 < 20 ? "d" : "a");
    await new Promise(ask);
  }
  const took = performance.now() - began;
  window.requestAnimationFrame = ask;
  return [(1000 * frames) / took, script / frames];
}"""


PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


def made_trace(folder: Path, megabytes: float) -> Path:
    """Write a trace of an eager training: an operator in an operator, a launch, and its kernel."""
    events = []
    for step in range(max(round(MADE_STEPS_PER_MEGABYTE * megabytes), 1)):
        start = step * 20.0 * MADE_OPERATORS
        events.append(("user_annotation", f"ProfilerStep#{step}", start, 20.0 * MADE_OPERATORS, 1))
        for i in range(MADE_OPERATORS):
            at, number = start + 20 * i, step * MADE_OPERATORS + i + 1
            events += [
                ("cpu_op", f"aten::linear_{i % 40}", at, 18, 1),
                ("cuda_runtime", "cudaLaunchKernel", at + 4, 5, 1, {"correlation": number}),
                ("kernel", f"sgemm_{i % 40}", at + 12, 6 + i % 9, 7,
                 {"correlation": number, "device": 0, "stream": 7}),
            ]  # fmt: skip
    rows = [
        {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid,
         "pid": 0 if cat == "kernel" else 1, "args": args[0] if args else {}}
        for cat, name, ts, dur, tid, *args in events
    ]  # fmt: skip
    path = folder / "made.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    return path


def measured(browser: Browser, path: Path, folder: Path, say: Callable[[str], None]) -> bool:
    """Say the figures of one trace; return whether all are within their limits."""
    found, traces = study([path], cache=False)
    began = time.perf_counter()
    shown = timeline(traces, found)
    took_ms = 1e3 * (time.perf_counter() - began)
    if shown is None:
        say(f"{path.name}: nothing to show")
        return True
    report = trace_report(found, page=lambda: TracePage(timeline=shown))
    began = time.perf_counter()
    text = formatted(report, ".html")
    page_ms = 1e3 * (time.perf_counter() - began)
    size = len(text.encode())
    say(
        f"{path.name} ({path.stat().st_size / 1e6:.1f} MB): {shown.events:,} events, "
        f"{shown.left_out:,} left out, page of {size / 1e6:.2f} MB; "
        f"timeline {took_ms:.0f} ms, page {page_ms:.0f} ms"
    )
    file = folder / f"{path.stem}.html"
    file.write_text(text, "utf-8")
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(file.as_uri())
    page.wait_for_selector(".lanes canvas")
    while (painted_ms := page.evaluate(PAINTED)) is None:
        page.wait_for_timeout(20)
    say(f"  first paint after {painted_ms:.0f} ms")
    fits = size <= MAX_PAGE_BYTES and painted_ms < MAX_FIRST_PAINT_MS
    for name, zooms in ZOOMS.items():
        frames_per_s, script_ms = page.evaluate(PAN, [FRAMES, zooms])
        say(f"  {name:8} {frames_per_s:5.0f} frames/s   {script_ms:5.2f} ms of script a frame")
        fits &= script_ms < 1e3 / MIN_FRAMES_PER_S
    page.close()
    return fits


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--megabytes", type=float, help="size of the made trace")
    parser.add_argument("--out", type=Path, help="write the figures as Markdown")
    given = parser.parse_args(argv)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("there is no chromium: apt-get install chromium")
        return 1
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        paths = list(given.traces)
        if given.megabytes or not paths:
            paths.append(made_trace(folder, given.megabytes or MADE_MEGABYTES))
        lines: list[str] = []

        def say(line: str) -> None:
            print(line, flush=True)
            lines.append(line)

        fits = [measured(browser, path, folder, say) for path in paths]
        version = browser.version
        browser.close()
    if given.out is not None:
        given.out.write_text(written(lines, argv, version))
    return 0 if all(fits) else 1


def written(lines: Sequence[str], argv: Sequence[str], chromium: str) -> str:
    """Return the figures as a page of the docs."""
    words = [Path(word).name if word.endswith((".json", ".json.gz")) else word for word in argv]
    return (
        f"# How fast a page opens and moves\n\n{date.today()}; ridgeline {ridgeline.__version__}, "
        f"Chromium {chromium} without a GPU, Python {platform.python_version()}, {os.cpu_count()} "
        f"processors, with a 1-minute load of {os.getloadavg()[0]:.1f} at the end; made by "
        f"`python benchmarks/page.py {' '.join(words)}`.\n\n"
        f"The limits for a page are {MAX_PAGE_BYTES / 1e6:.0f} MB, "
        f"{MAX_FIRST_PAINT_MS / 1e3:.1f} s until the first paint, and "
        f"{1e3 / MIN_FRAMES_PER_S:.0f} ms of script a frame.\n\n"
        "For each trace, `timeline` is the time to choose and arrange the events, and `page` the\n"
        "time to write the page. `left out` counts the events that the page does not hold, to\n"
        "stay small. `first paint` is the time from opening the file to the first text on the\n"
        f"screen. Then {FRAMES} frames are drawn while the timeline moves, at each of three\n"
        f"zooms: `all` shows the whole trace, `a part` is zoomed in by {ZOOMS['a part']} key\n"
        f"presses, and `close` by {ZOOMS['close']}.\n\n```\n" + "\n".join(lines) + "\n```\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
