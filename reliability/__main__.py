"""Runs the rows asked for and prints a line each; exit code 1 where one failed or did not run."""

import argparse
import importlib
import signal
import sys

from reliability.row import Asked, Row

ROWS = {
    1: "transparency",
    2: "transparency",
    3: "faults",
    4: "kills",
    5: "workers",
    11: "pages",
    13: "pages",
    16: "secrets",
    17: "network",
    18: "limits",
    19: "patching",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="reliability", description=__doc__)
    parser.add_argument("--row", type=int, action="append", choices=sorted(ROWS), default=[])
    parser.add_argument("--only", default="", metavar="NAME", help="cases whose name holds this")
    parser.add_argument("--group", default="", help="programs of files whose name begins so")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one-in", type=int, default=1, metavar="N", help="a part of the cases")
    parser.add_argument("--plain", action="store_true", help="plain against plain")
    parser.add_argument("--all", action="store_true", help="every program in every arm")
    parser.add_argument("--keep", action="store_true", help="leave the folders of failed cases")
    given = parser.parse_args()
    # A shell ignores Ctrl-C for what it puts in the background, and nohup ignores SIGHUP; so would
    # every program here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    asked = Asked(
        given.jobs, given.only, given.seed, given.group, given.plain,
        given.all, given.keep, max(given.one_in, 1),
    )  # fmt: skip
    modules = dict.fromkeys(ROWS[number] for number in given.row or sorted(ROWS))
    rows: list[Row] = []
    for name in modules:
        found = importlib.import_module(f"reliability.rows.{name}").run(asked)
        for row in found:
            said(row, asked)
        rows += found
    return 0 if rows and all(row.good(asked) for row in rows) else 1


def said(row: Row, asked: Asked) -> None:
    """As soon as it is over: the whole takes a while, and a later row may not come."""
    print(row.line(asked))
    for note in row.notes:
        print(f"          {note}")
    for failure in row.failures:
        print(f"row {row.number}: {failure}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
