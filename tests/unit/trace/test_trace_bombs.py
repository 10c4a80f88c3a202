"""Files made to take the machine: bounded in time and memory, and refused or read."""

import gzip
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from decoders import GOOD

zstandard = pytest.importorskip("zstandard")


CHILD = """
    import resource, sys, time
    from pathlib import Path
    import zstandard
    from ridgeline.errors import RidgelineError
    from ridgeline.trace.reading import compiled, reader
    from ridgeline.trace.reading.portable import Portable
    if sys.argv[1] == "Portable" or compiled.library() is None:
        reader._decoder = lambda path: Portable()
    def peak():  # of this process alone; getrusage tells the parent's too
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM"))
    before = peak()
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    for path in sys.argv[2:]:
        began = time.process_time()
        try:
            trace = reader.parse(Path(path))
            lost = sum(loss.count for loss in trace.origin.losses if loss.lost)
            told = f"read {trace.origin.events} {lost}"
        except RidgelineError as error:
            told = "refused"
        print(f"{told}|{time.process_time() - began:.2f}|{peak() - before}")
"""


def _bomb_gzip(path: Path) -> None:
    """600 MB of spaces inside the events, 1000 to 1."""
    path.write_bytes(gzip.compress(b'{"traceEvents": [') + gzip.compress(b" " * (10 << 20)) * 60)


def _bomb_zstd(path: Path) -> None:
    pack = zstandard.ZstdCompressor().compress
    path.write_bytes(pack(b'{"traceEvents": [') + pack(b"\0" * (10 << 20)) * 60)


def _with(middle: bytes, count: int = 1) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        event = json.dumps(GOOD).encode()
        with path.open("wb") as file:
            file.write(b'{"traceEvents": [' + event + b",")
            for _ in range(count):
                file.write(middle)
            file.write(b"," + event + b'], "traceName": "x"}')

    return write


def _long(head: bytes, unit: bytes, count: int, tail: bytes) -> Callable[[Path], None]:
    return _with(head + unit * count + tail)


BOMBS: dict[str, tuple[Callable[[Path], None], str]] = {
    "gzip 1000 to 1": (_bomb_gzip, "refused"),
    "zstd 20000 to 1": (_bomb_zstd, "refused"),
    "a million deep": (_long(b'{"ph":"X","args":', b"[", 10**6, b"]" * 10**6 + b"}"), "read 2 1"),
    "a million objects deep": (_long(b"", b'{"a":', 10**6, b"1" + b"}" * 10**6), "read 2 1"),
    "a string of 34 MB": (_long(b'{"ph":"X","name":"', b"x", 34 << 20, b'"}'), "read 2 1"),
    "8 million escapes": (_long(b'{"ph":"X","name":"', b"\\n", 8 << 20, b'"}'), "read 2 1"),
    "a key of 8 million escapes": (
        lambda path: _metadata(path, b'"a' + b"\\n" * (8 << 20) + b'":1,'), "read 1 0",
    ),
    "a name of 20 MB": (
        _long(b'{"ph":"X","ts":1,"dur":1,"pid":1,"tid":1,"name":"', b"x", 20 << 20, b'"}'),
        "read 3 0",
    ),
    "300,000 keys": (_long(b'{"ph":"X",', b'"k":1,', 300_000, b'"ts":1,"dur":-1}'), "read 2 1"),
    "an integer of 5 MB": (
        _long(b'{"ph":"X","dur":1,"pid":1,"tid":1,"name":"n","ts":', b"9", 5 << 20, b"}"),
        "read 2 1",
    ),
    "1500 integers of 4000 digits": (
        _long(b'{"ph":"X","dur":1,"ts":1,"args":{"x":[', b"9" * 4000 + b",", 1500, b"1]}}"),
        "read 3 0",
    ),
    "100,000 keys of metadata": (
        lambda path: _metadata(path, b"".join(b'"k%d":1,' % i for i in range(100_000))),
        "read 1 0",
    ),
    "metadata of 34 MB": (
        lambda path: _metadata(path, b'"a":"' + b"x" * (34 << 20) + b'",'), "read 1 0",
    ),
    "brackets without end": (
        lambda path: _metadata(path, b'"a":' + b'[{"' * (1 << 16) + b","), "read 1 0",
    ),
    "60,000 starts of an event": (_long(b"", b'{"ph":"X",', 60_000, b"1"), "read 2"),
    "unclosed strings": (_long(b'{"ph":"X', b'\\"{"ph":', 60_000, b"1"), "read 2"),
}  # fmt: skip


def _metadata(path: Path, before: bytes) -> None:
    path.write_bytes(b"{" + before + b'"traceEvents": [' + json.dumps(GOOD).encode() + b"]}")


@pytest.mark.parametrize("decoder", ["Compiled", "Portable"])
def test_bombs_are_bounded_in_time_and_memory(tmp_path: Path, decoder: str) -> None:
    """One after the other in a child that may not have more than 2 GB."""
    paths = []
    for index, (write, _) in enumerate(BOMBS.values()):
        paths.append(tmp_path / f"bomb{index}.json")
        write(paths[-1])
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CHILD), decoder, *map(str, paths)],
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    for path in paths:
        path.unlink()
    assert child.returncode == 0, child.stderr[-2000:]
    results = dict(zip(BOMBS, child.stdout.splitlines(), strict=True))
    print(results)
    for bomb, line in results.items():
        told, seconds, megabytes = line.split("|")
        assert told.startswith(BOMBS[bomb][1]), (bomb, line)
        assert float(seconds) < 10, (bomb, line)  # of processor time: machines are shared
        assert int(megabytes) < 512, (bomb, line)
