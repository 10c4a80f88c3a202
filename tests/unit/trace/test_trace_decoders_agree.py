"""Three readers, one meaning: the scanner, the portable decoder and a slow obvious reader."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow_reader import NUMBERS, slow_read
from trace_differences import differences, lost

from ridgeline.trace.reading import compiled, reader
from ridgeline.trace.reading.event import Decoder, value_end
from ridgeline.trace.reading.portable import Portable
from ridgeline.trace.trace import Trace

LIBRARY = compiled.library()
EXAMPLES = int(os.environ.get("RIDGELINE_EXAMPLES", "80"))
quick = settings(
    max_examples=EXAMPLES, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip


def scanner() -> Decoder:
    assert LIBRARY is not None
    return compiled.Compiled(LIBRARY)


def read_by(decoder: Callable[[], Decoder], path: Path) -> Trace:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "_decoder", lambda path: decoder())
        return reader.parse(path)


class Verbatim(str):
    """JSON written as it stands here, not as Python would write it."""


def written(value: Any) -> str:
    if isinstance(value, Verbatim):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)}: {written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)


texts = st.one_of(
    st.sampled_from(["aten::add", "[memory]", "ProfilerStep#3", "Optimizer.step#A", "a\"b\\c/d",
                     "\x00\x01\t\n\x1b[31m", "naïve ✓ 𝄞", "", "</script>", "nn.Module: L_1"]),
    st.text(max_size=12),
)  # fmt: skip
raw_texts = st.sampled_from([
    '"\\ud800"', '"\\ud83d\\ude00"', '"\\u0041b"', '"\\/\\b\\f"', '"tab\there"', '"nul\\u0000"',
    '"\x01raw\x1f"', '"a\\"b"', '"\\\\"',
]).map(Verbatim)  # fmt: skip
raw_numbers = st.sampled_from([
    "1e3", "1E+2", "-0", "-0.0", "1.0", "12.50", "1e400", "1e-400", "9" * 25, "9" * 5000,
    "4611686018427387904", "4611686018427387905", "-9223372036854775808", "2147483648", "0.0005",
    "0.00049999999999999999999", "1700000000000000.1255", "1700000000000000.12349999", "3e15",
    "3000000000000000.5", "2999999999999999.999", "NaN", "Infinity", "-Infinity", "5.0000000001",
]).map(Verbatim)  # fmt: skip
strange = st.one_of(
    st.none(), st.booleans(), texts, raw_texts, raw_numbers, st.integers(), st.just([]),
    st.just({}),
    st.sampled_from(["12", "-7", "007", "1_000", " 5 ", "٣", "--1", "-", "7.0", "1e2", "NaN"]),
    st.just({"a": [1, {"b": None}]}), st.lists(st.integers(-5, 5), max_size=3),
)  # fmt: skip
times = st.one_of(
    st.integers(0, 10**6),
    st.integers(0, 10**16).map(lambda n: Verbatim(f"{n // 1000}.{n % 1000:03}")),
    st.decimals(0, 10**13, places=4, allow_nan=False).map(lambda d: Verbatim(format(d, "f"))),
)  # fmt: skip
ids = st.one_of(
    st.integers(-1, 9),
    st.sampled_from([3113, 140_000_000_000_000, "stream 7", "CUDA functions", "CPU functions"]),
    st.sampled_from(["", "é", "7", "-1"]),
)
KEYS = [
    *{key for columns in NUMBERS.values() for keys in columns.values() for key in keys},
    "Input Dims", "Input type", "Concrete Inputs", "Input Strides", "grid", "block", "Rank",
    "est. achieved occupancy %", "Collective name", "cuda_sync_kind", "Call stack", "elsewhere",
]  # fmt: skip
plain_args = st.dictionaries(
    st.sampled_from(sorted(KEYS)),
    st.one_of(st.integers(-1, 2**31 - 1), st.lists(st.integers(0, 9), max_size=3), texts),
    max_size=6,
)
odd_args = st.dictionaries(st.sampled_from(sorted(KEYS)), strange, max_size=4)
CATEGORIES = [
    "cpu_op", "Operator", "user_annotation", "python_function", "cuda_runtime", "Runtime", "kernel",
    "Kernel", "hip_runtime", "cuda_driver", "gpu_memcpy", "Memcpy", "gpu_memset", "cuda_sync",
    "ac2g", "overhead", "Trace", "cpu_instant_event", "gpu_user_annotation", "",
]  # fmt: skip
PHASES = ["X", "X", "X", "X", "i", "I", "s", "f", "M", "C", "B", "XX", ""]


@st.composite
def events(draw: Any) -> Any:
    """An event: mostly as torch writes it, now and then with anything anywhere, in any order."""
    event: dict[str, Any] = {
        "ph": draw(st.sampled_from(PHASES)),
        "cat": draw(st.sampled_from(CATEGORIES)),
        "name": draw(texts),
        "pid": draw(ids),
        "tid": draw(ids),
        "ts": draw(times),
        "dur": draw(times),
        "args": draw(plain_args),
    }
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        key = draw(st.sampled_from([*event, "args", "extra"]))
        event[key] = draw(odd_args) if key == "args" and draw(st.booleans()) else draw(strange)
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        event.pop(
            draw(st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"])), 0
        )
    if draw(st.booleans()):
        keys = draw(st.permutations(list(event)))
        event = {key: event[key] for key in keys}
    return event if draw(st.integers(0, 40)) else draw(strange)


@st.composite
def documents(draw: Any) -> bytes:
    """A whole file in one of the layouts that exist."""
    array = [written(event) for event in draw(st.lists(events(), max_size=8))]
    layout = draw(st.sampled_from(["dense", "lines", "indented", "crlf"]))
    joint = {"dense": ",", "lines": ",\n  ", "indented": "\n  ,\n", "crlf": ",\r\n\t"}[layout]
    listed = "[" + ("\n" if layout != "dense" else "") + joint.join(array) + "]"
    if draw(st.integers(0, 5)) == 0:
        text = listed
    else:
        before = '"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "G", "x": [{}]}], '
        after = ', "traceName": "a]b}", "baseTimeNanoseconds": 5, "more": [{"ph": 1}, {}]'
        text = "{" + before * draw(st.booleans()) + f'"traceEvents": {listed}'
        text += after * draw(st.booleans()) + "}"
    if layout == "crlf":
        text = text.replace(", ", ",\r\n")
    mark = "\ufeff" * draw(st.booleans())
    return (mark + text + "\n" * draw(st.booleans())).encode("utf-8", "surrogatepass")


@quick
@given(document=documents())
def test_the_three_readers_tell_the_same(
    tmp_path_factory: pytest.TempPathFactory, document: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "agree.json"
    path.write_bytes(document)
    trace = read_by(Portable, path)
    if LIBRARY is not None:
        assert differences(read_by(scanner, path), trace) == []
    try:
        rows, uncounted, gone = slow_read(document)
    except (ValueError, ArithmeticError):
        return  # an integer of 5000 digits: Python's own reader gives up the document
    assert lost(trace) == gone
    assert trace.origin.events == uncounted + sum(len(kept) for kept in rows.values())
    for table, kept in rows.items():
        assert _rows_of(trace, table) == _comparable(table, kept)


def _rows_of(trace: Trace, table: str) -> list[Any]:
    events = getattr(trace, table)
    found = []
    for i in range(len(events)):
        row = {c: int(getattr(events, c)[i]) for c in events.columns()}
        lane = trace.lanes[row["lane"]]
        row |= {"name": trace.text(row["name"]), "lane": (lane.pid, lane.tid)}
        if "shape" in row:
            shape = trace.shape(row["shape"])
            row["shape"] = [shape.dims, shape.types, shape.concrete, shape.strides]
        if "info" in row:
            row["info"] = trace.info(row["info"])
        del row["kind"]
        found.append(row)
    return _comparable(table, found)


def _comparable(table: str, rows: list[dict[str, Any]]) -> list[str]:
    """Rows as text (NaN is not itself); calls without their lane, which is theirs to move."""
    keys = ["Input Dims", "Input type", "Concrete Inputs", "Input Strides"]
    told = []
    for row in rows:
        shape = row.get("shape")
        if isinstance(shape, dict):
            listed = (shape.get(key) for key in keys)
            shape = [tuple(v) if isinstance(v, list) else () for v in listed]
        info = sorted((row.get("info") or {}).items())
        rest = {k: v for k, v in row.items() if k not in ("shape", "info")}
        if table == "calls":
            rest.pop("lane")
        told.append(repr((sorted(rest.items()), shape, info)))
    return sorted(told)


@pytest.mark.skipif(LIBRARY is None, reason="no C compiler here")
def test_both_agree_on_where_a_value_ends() -> None:
    """20,000 values with bytes changed, put in, taken out, and ends cut off."""
    chance = random.Random(7)
    good = [
        b'{"ph": "X", "args": {"a": [1, 2.5, -3e+5, {"b": null}], "c": "x\\u00e9\\n", "d": NaN}}, ',
        b'[0, -0.5, 1E5, "", {}, [], [[]], {"a":{}}, Infinity, -Infinity, true, false ]',
        b'"abc\\"d\\u12aF" ', b"-12.5e-3,", b"nullx", b"[" * 64 + b"]" * 64, b"[" * 65 + b"]" * 65,
    ]  # fmt: skip
    strange = b'{}[]",:\\ 0129.eE+-nulltrfasNIiy\x01\xffu'
    decoder = scanner()
    ends = set()
    for _ in range(20_000):
        text = bytearray(chance.choice(good))
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            at = chance.randrange(len(text))
            text[at : at + chance.choice((0, 1))] = (
                bytes(chance.choice(strange) for _ in range(chance.choice((0, 1)))) or b""
            )
            text = text or bytearray(b" ")
        text = text[: chance.choice((len(text), chance.randrange(len(text) + 1)))]
        start = chance.randrange(len(text)) if text and chance.random() < 0.5 else 0
        end = value_end(bytes(text), start)
        assert end == decoder.value_end(bytes(text), start), bytes(text)
        ends.add(end)
    assert {-1, -2} < ends


@pytest.mark.skipif(LIBRARY is None, reason="no C compiler here")
def test_a_trace_of_several_blocks_and_chunks_is_read_alike(tmp_path: Path) -> None:
    """200,000 events: more than a chunk (131,072) and far more than a block (1 MiB)."""
    event = (
        '{"ph":"X","cat":"kernel","name":"k%d","pid":0,"tid":7,"ts":%d.125,"dur":1.5,'
        '"args":{"stream":%s}}'
    )
    lines = [event % (i % 50, i * 3, '"7"' if i % 9973 == 0 else "7") for i in range(200_000)]
    path = tmp_path / "large.json"
    path.write_text('{"traceEvents":[' + ",\n".join(lines) + '],"traceName":"x"}')
    one, two = read_by(scanner, path), read_by(Portable, path)
    assert differences(one, two) == []
    assert len(two.device) == 200_000
    assert np.array_equal(two.device.ts, np.arange(200_000) * 3000 + 125)
    assert (two.device.stream == 7).all()


def test_epoch_microseconds_keep_their_nanoseconds(tmp_path: Path) -> None:
    """float64 would be a quarter of a microsecond off."""
    path = tmp_path / "epoch.json"
    times = [1700000000000000123 + 7 * i for i in range(500)]
    event = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%d.%03d,"dur":0.001}'
    events = ",".join(event % divmod(t, 1000) for t in times)
    path.write_text('{"traceEvents":[' + events + "]}")
    for decoder in [scanner, Portable] if LIBRARY else [Portable]:
        assert read_by(decoder, path).device.ts.tolist() == times
