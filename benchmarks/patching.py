"""Patches real Python files at sites drawn for them and checks that nothing was harmed.

    python benchmarks/patching.py --files 520

Files of the standard library and of the installed packages, each as it is, with CRLF, with a byte
order mark, with tabs and without its last newline: the result must compile, give the original back
when the edits are taken out, and stay as it is when patched again; the original's hash must not
change, and a copy is written whole or refused in a sentence. Exit code 1 where one file failed.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/unit/source/editing"))
from patch_trial import file_faults, real_files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=520)
    parser.add_argument("--largest", type=int, default=60_000, help="bytes of a file at most")
    parser.add_argument("--parts", type=int, default=1, help="every n-th file, beginning with")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--show", type=int, default=20, help="failures printed at most")
    options = parser.parse_args()
    files = real_files(options.files, options.largest)[options.part :: options.parts]
    counts: Counter[str] = Counter()
    failed = 0
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(files):
            if number % 20 == 0:
                print(f"{number} files, {failed} failed", file=sys.stderr)
            try:
                faults = file_faults(path, Path(folder), counts)
            except Exception as error:
                faults = [f"{type(error).__name__}: {error}"]
            failed += bool(faults)
            if faults and failed <= options.show:
                print(f"{path}: {'; '.join(faults)}")
    for name, count in sorted(counts.items()):
        print(f"{count:7}  {name}")
    took = time.perf_counter() - began
    print(f"{len(files) - failed}/{len(files)} files unharmed, in {took:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
