"""Real traces against the slow, obvious reference of the tests: equal to the nanosecond, or named.

    python benchmarks/trace_reference.py FILES…

Reads each file with json and Decimal, works out window, busy time, idle causes, kernel sums and
operator counts in plain Python, and compares with what `ridgeline trace` says. Files beyond
--events are skipped: the reference looks at everything for every piece of every gap.
"""

import argparse
import gzip
import json
import sys
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/unit/trace"))
from slow_idle import DEVICE, OPS, SlowIdle, end_of, in_ns, union

from ridgeline.trace.study import study


def check(path: Path, most: int) -> list[str]:
    """What differs; a sentence each."""
    packed = path.read_bytes()
    text = gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
    raw = json.loads(text, strict=False, parse_float=Decimal)["traceEvents"]
    if len(raw) > most:
        return [f"skipped: {len(raw):,} events"]
    found, _ = study([path], cache=False, limit=100_000)
    events = in_ns(raw)
    work = [e for e in events if e["cat"] in DEVICE]
    wrong = []
    if found.events != len(raw):
        wrong.append(f"{found.events} events, not {len(raw)}")
    if not work:
        return wrong
    busy = sum(b - a for a, b in union([(e["ts"], end_of(e)) for e in work]))
    if len(found.devices) == 1 and found.devices[0].busy_ns != busy:
        wrong.append(f"busy {found.devices[0].busy_ns}, not {busy}")
    sums: Counter[str] = Counter()
    for e in work:
        sums[e["name"]] += e["dur"]
    if {row.name: row.total_ns for row in found.kernels} != dict(sums):
        wrong.append("kernel sums differ")
    window = found.window
    calls = Counter(e["name"] for e in events if e["cat"] in OPS
                    and window.start_ns <= e["ts"] < window.end_ns)  # fmt: skip
    listed = {row.name: row.count for row in found.ops}
    spans = ("ProfilerStep", "Optimizer.", "enumerate(DataLoader)")
    few = [n for n, count in calls.items() if listed.get(n, 0) < count and not n.startswith(spans)]
    if few:
        wrong.append(f"operators counted short: {few[:3]}")
    if found.idle.total_ns is not None:
        slow = SlowIdle(events)
        mine = {cause.cause: cause.ns for cause in found.idle.causes}
        if mine != dict(slow.causes()):
            wrong.append(f"idle causes {mine}, not {dict(slow.causes())}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--events", type=int, default=5000, help="larger files are skipped")
    given = parser.parse_args()
    failed = False
    for path in given.files:
        began = time.perf_counter()
        wrong = check(path, given.events)
        said = "; ".join(wrong) or "equal to the nanosecond"
        print(f"{path.name}: {said} ({time.perf_counter() - began:.1f} s)", flush=True)
        failed |= bool(wrong) and not said.startswith("skipped")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
