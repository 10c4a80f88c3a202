"""How long `ridgeline --help` takes to answer, and what it imports.

    python benchmarks/startup.py

Each round starts `python -c pass` and `ridgeline --help` one after the other, so that both meet the
same machine; the figure is the median of 15 rounds, and the ratio the median of the rounds' ratios.
Exit 1 where torch, numpy, rich or duckdb is imported, or the median is above 150 ms.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

ROUNDS = 15
LIMIT_MS = 150.0
FORBIDDEN = ("torch", "numpy", "rich", "duckdb")
HELP = (sys.executable, "-m", "ridgeline", "--help")
NOTHING = (sys.executable, "-c", "pass")
MODULES = """
import sys
before = set(sys.modules)
from ridgeline.cli import main
try:
    main()
except SystemExit:
    pass
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}), file=sys.stderr)
"""


def took_ms(command: Sequence[str]) -> float:
    begun = time.perf_counter_ns()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter_ns() - begun) / 1e6


def imported() -> list[str]:
    """Packages beyond the standard library that are imported by the time help is printed."""
    done = subprocess.run(
        [sys.executable, "-c", MODULES, "--help"], capture_output=True, text=True, check=True
    )
    names = done.stderr.split()
    return [n for n in names if n not in sys.stdlib_module_names and not n.startswith("_")]


def main() -> int:
    took_ms(HELP)  # the first start writes bytecode
    rounds = [(took_ms(NOTHING), took_ms(HELP)) for _ in range(ROUNDS)]
    bare, helped = (median(column) for column in zip(*rounds, strict=True))
    ratio = median(b / a for a, b in rounds)
    third_party = imported()
    wrong = [name for name in FORBIDDEN if name in third_party]
    print(f"python {sys.version.split()[0]} on {os.cpu_count()} cores, median of {ROUNDS} rounds")
    print(f"  python -c pass      {bare:6.1f} ms")
    print(f"  ridgeline --help    {helped:6.1f} ms   {ratio:.1f} × python itself")
    print(f"  imports beyond the standard library: {', '.join(third_party)}")
    if wrong:
        print(f"  FAIL: imports {', '.join(wrong)}")
    if helped > LIMIT_MS:
        print(f"  FAIL: above {LIMIT_MS:.0f} ms")
    return 1 if wrong or helped > LIMIT_MS else 0


if __name__ == "__main__":
    sys.exit(main())
