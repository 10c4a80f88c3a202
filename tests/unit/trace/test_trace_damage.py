"""Damaged files: what is whole is kept, what is lost is counted, nothing is ever raised but one
sentence, and no file takes the machine."""

import gzip
import json
import random
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from decoders import DECODERS, GOOD, Parse
from trace_differences import differences, lost
from traces_alike import alike

from ridgeline.errors import RidgelineError
from ridgeline.trace.reading import reader
from ridgeline.trace.study import open_trace
from ridgeline.trace.trace import Trace

zstandard = pytest.importorskip("zstandard")
DOCUMENTS = alike()


def spans(document: bytes) -> list[tuple[int, int]]:
    """Where each event begins and ends, told by Python's own reader."""
    text = document.decode("ascii")
    found = re.search(r'^\[|"traceEvents":\s*\[', text)
    assert found is not None
    at = found.end()
    listed = []
    while (at := at + len(text[at:]) - len(text[at:].lstrip(" \n,"))) and text[at] == "{":
        end = json.JSONDecoder().raw_decode(text, at)[1]
        listed.append((at, end))
        at = end
    return listed


SPANS = {name: spans(document) for name, document in DOCUMENTS.items()}


def whole_before(name: str, cut: int) -> int:
    return sum(end <= cut for _, end in SPANS[name])


def test_there_are_twelve_traces_and_each_is_read_whole(parse: Parse) -> None:
    assert len(DOCUMENTS) == 12
    for name, document in DOCUMENTS.items():
        trace = parse(document)
        assert trace.origin.events == len(SPANS[name]) > 20, name
        assert not trace.origin.losses, name
        assert not trace.origin.truncated, name


# ---------------------------------------------------------------- cut short


@pytest.mark.parametrize("name", list(DOCUMENTS))
def test_every_whole_event_before_a_cut_is_kept(parse: Parse, name: str) -> None:
    """At every percent and at 10 random bytes."""
    document = DOCUMENTS[name]
    chance = random.Random(name)
    cuts = [len(document) * i // 100 for i in range(100)]
    cuts += [chance.randrange(len(document)) for _ in range(10)]
    first = SPANS[name][0][0]
    messages: set[str] = set()
    for cut in cuts:
        if cut < first:  # no bracket of the events: nothing to read, and it is said
            try:
                assert parse(document[:cut]).origin.events == 0
            except RidgelineError as error:
                messages.add(error.message.partition(": ")[2])
            continue
        trace = parse(document[:cut])
        whole = whole_before(name, cut)
        assert trace.origin.events == whole, cut
        inside = any(start < cut < end for start, end in SPANS[name])
        assert lost(trace) == inside, cut
        assert trace.origin.truncated, cut
    assert all(m.endswith(("empty", "PyTorch trace", "`traceEvents`")) for m in messages)


def _gzip_prefix(packed: bytes) -> bytes:
    return zlib.decompressobj(wbits=31).decompress(packed)


def _zstd_prefix(packed: bytes) -> bytes:
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    return b"".join(unpacker.decompress(packed[i : i + 1]) for i in range(len(packed)))


@pytest.mark.parametrize("name", list(DOCUMENTS))
@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_every_whole_event_before_a_cut_in_a_packed_file_is_kept(
    parse: Parse, name: str, packing: str
) -> None:
    """At every fourth percent and at 8 random bytes; the oracle unpacks byte by byte."""
    document = DOCUMENTS[name]
    pack = gzip.compress if packing == "gzip" else zstandard.ZstdCompressor().compress
    prefix = _gzip_prefix if packing == "gzip" else _zstd_prefix
    packed = pack(document)
    chance = random.Random(name + packing)
    cuts = [len(packed) * i // 100 for i in range(8, 100, 4)] + [len(packed) - 1, len(packed) - 7]
    cuts += [chance.randrange(25, len(packed)) for _ in range(8)]
    for cut in cuts:
        text = prefix(packed[:cut])
        whole = whole_before(name, len(text))
        try:
            trace = parse(packed[:cut])
        except RidgelineError:
            assert whole == 0, cut
            continue
        assert trace.origin.events == whole, cut
        assert "ends before its end mark" in trace.origin.truncated
        assert trace.origin.unverified


# ---------------------------------------------------------------- one damaged event


def test_a_flipped_byte_in_an_event_costs_that_event_at_most(parse: Parse) -> None:
    """30 flips in each of the twelve: the others are all kept, and a loss is counted."""
    costly = flips = 0
    for name, document in DOCUMENTS.items():
        chance = random.Random(name)
        for _ in range(30):
            start, end = chance.choice(SPANS[name])
            text = bytearray(document)
            text[chance.randrange(start, end)] = chance.choice(b'{}[]",:\\x0\x00\x01\xff')
            trace = parse(bytes(text))
            missing = len(SPANS[name]) - trace.origin.events
            assert missing <= 1, (name, bytes(text[start:end]))
            assert missing <= lost(trace) <= 3 * missing + 3, (name, bytes(text[start:end]))
            flips += 1
            costly += missing
    assert flips == 360
    assert costly > 100  # the flips do damage


@pytest.mark.parametrize("joint", [b",,", b" ", b",\x00", b"]", b"},", b",x,"])
def test_damage_between_two_events_costs_none(parse: Parse, joint: bytes) -> None:
    document = DOCUMENTS["processor only"]
    listed = SPANS["processor only"]
    end, start = listed[10][1], listed[11][0]
    trace = parse(document[:end] + joint + document[start:])
    assert trace.origin.events == len(listed)
    assert trace.origin.losses
    assert lost(trace) == 0


def test_several_damaged_events_in_a_row_are_each_counted(parse: Parse) -> None:
    document = bytearray(DOCUMENTS["training"])
    for start, end in SPANS["training"][5:9]:
        document[document.index(b'"cat"', start, end)] = 0
    trace = parse(bytes(document))
    assert trace.origin.events == len(SPANS["training"]) - 4
    assert lost(trace) == 4


def test_damage_that_looks_like_the_end_of_the_events_does_not_end_them(parse: Parse) -> None:
    events = [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": i, "dur": 1,
               "args": {"groups": [{"a": 1}], "b": 2}} for i in range(20)]  # fmt: skip
    document = json.dumps({"traceEvents": events, "traceName": "x"})
    at = document.index('"ts": 7') + 3
    trace = parse((document[:at] + "!" + document[at + 1 :]).encode())
    assert trace.origin.events == 19
    assert lost(trace) == 1


def test_an_event_that_begins_with_a_closing_bracket_is_counted(parse: Parse) -> None:
    document = bytearray(DOCUMENTS["training"])
    document[SPANS["training"][7][0]] = ord("]")
    trace = parse(bytes(document))
    assert trace.origin.events == len(SPANS["training"]) - 1
    assert lost(trace) == 1


@pytest.mark.parametrize(
    "broken",
    [b'xtraceEvents":[', b'"traceEventz":[', b'"traceEvents"x[', b'"traceEvents":x',
     b'"traceEvents:['],
)  # fmt: skip
def test_damage_to_the_key_of_the_events_costs_no_event(parse: Parse, broken: bytes) -> None:
    document = DOCUMENTS["stacks and shapes"].replace(b'"traceEvents":[', broken)
    trace = parse(document)
    assert trace.origin.events == len(SPANS["stacks and shapes"])
    assert trace.origin.losses


UNUSABLE: list[tuple[str, Any]] = [
    ("ts", None), ("ts", "soon"), ("ts", True), ("ts", []), ("ts", 1e300), ("ts", float("nan")),
    ("ts", 10**30), ("dur", None), ("dur", -1), ("dur", float("inf")), ("dur", {}), ("ph", None),
    ("ph", 7), ("ph", "Q"),
]  # fmt: skip
USABLE: list[tuple[str, Any]] = [
    ("name", None), ("name", 12), ("name", ["a"]), ("args", None), ("args", []), ("args", 3),
    ("pid", None), ("tid", [1]), ("pid", 1.5), ("cat", 5), ("ts", "7"), ("dur", "2.5"),
    ("args", {"stream": 10**40}), ("args", {"stream": "x"}), ("args", {"correlation": -(2**70)}),
    ("args", {"correlation": None, "stream": 7.5}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), UNUSABLE)
def test_an_event_without_a_usable_time_or_phase_is_lost_alone(
    parse: Parse, key: str, value: Any
) -> None:
    trace = parse(json.dumps({"traceEvents": [GOOD, GOOD | {key: value}, GOOD]}).encode())
    assert len(trace.device) == 2
    assert [(loss.count, loss.lost) for loss in trace.origin.losses] == [(1, True)]
    bare = {k: v for k, v in GOOD.items() if k != key}
    trace = parse(json.dumps({"traceEvents": [GOOD, bare, GOOD]}).encode())
    assert len(trace.device) == 2
    assert lost(trace) == 1


@pytest.mark.parametrize(("key", "value"), USABLE)
def test_an_odd_field_does_not_cost_the_event(parse: Parse, key: str, value: Any) -> None:
    events = [GOOD, GOOD | {key: value}, GOOD, None, 7, [], "x"]
    trace = parse(json.dumps({"traceEvents": events}).encode())
    assert sum(len(getattr(trace, t)) for t in ("device", "others")) == 3
    assert lost(trace) == 4  # the four that are no objects


# ---------------------------------------------------------------- the 21 kinds


def _kinds() -> Iterator[tuple[str, bytes, int | None]]:
    """Each with the events that must be left; None: it is refused."""
    name = "stacks and shapes"
    good = DOCUMENTS[name]
    count = len(SPANS[name])
    packed = gzip.compress(good)
    half = packed[: len(packed) // 2]
    yield "gzip cut in half", half, whole_before(name, len(_gzip_prefix(half)))
    yield "gzip without its trailer", packed[:-8], count
    flipped = bytearray(packed)
    flipped[-6] ^= 4
    yield "flipped bit in the checksum", bytes(flipped), count
    cut = len(good) * 2 // 3
    yield "JSON cut", good[:cut], whole_before(name, cut)
    yield "empty", b"", None
    yield "gzip of nothing", gzip.compress(b""), None
    yield "plain JSON called .gz", good, count
    yield "no traceEvents", b'{"schemaVersion": 1, "deviceProperties": []}', None
    yield "empty traceEvents", b'{"traceEvents": []}', 0
    yield "list form", json.dumps([GOOD] * 5).encode(), 5
    for what, change in {
        "ts a string": {"ts": "12.5"}, "no ts": {"ts": None}, "huge ts": {"ts": 1e300},
        "NaN dur": {"dur": float("nan")}, "negative dur": {"dur": -5}, "null args": {"args": None},
        "integer name": {"name": 5},
    }.items():  # fmt: skip
        left = 3 if what in ("ts a string", "null args", "integer name") else 2
        yield what, json.dumps({"traceEvents": [GOOD, GOOD | change, GOOD]}).encode(), left
    three = json.dumps({"traceEvents": [GOOD, GOOD, GOOD]}).encode()
    yield "null event", three.replace(b"[{", b"[null,{"), 3
    yield "control character", three.replace(b'"k"', b'"k\x01"', 1), 3
    yield "bad UTF-8", three.replace(b'"k"', b'"k\xff\xfe"', 1), 3
    deep = b"[" * 100_000 + b"]" * 100_000
    yield "100,000 deep", three.replace(b'"stream": 7', b'"x": ' + deep, 1), 2


KINDS = {what: (data, left) for what, data, left in _kinds()}


@pytest.mark.parametrize("what", list(KINDS))
def test_each_known_kind_of_damage_gets_a_result_or_a_sentence(parse: Parse, what: str) -> None:
    data, left = KINDS[what]
    assert len(KINDS) == 21
    if left is None:
        with pytest.raises(RidgelineError) as refused:
            parse(data)
        assert "\n" not in refused.value.message
        return
    assert parse(data).origin.events == left


def test_a_wrong_checksum_is_said_and_costs_no_event(parse: Parse) -> None:
    trace = parse(KINDS["flipped bit in the checksum"][0])
    assert "checksum does not match" in trace.origin.unverified


def test_what_unpacks_before_a_damaged_byte_is_kept(parse: Parse) -> None:
    """All events before it, although the unpacker fails there and hands out nothing."""
    name = "training"
    noise = random.Random(1).randbytes(4000).hex().encode()
    document = DOCUMENTS[name].replace(b'"traceName"', b'"noise":"' + noise + b'","traceName"')
    packed = bytearray(gzip.compress(document, 9))
    packed[-20:-10] = b"\xff" * 10
    trace = parse(bytes(packed))
    assert trace.origin.events == len(SPANS[name])
    assert trace.origin.unverified


# ---------------------------------------------------------------- anything at all


def test_random_damage_is_read_alike_by_both_decoders_and_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 mutants: bytes changed, put in, taken out, moved, plain and packed."""
    chance = random.Random(4)
    path = tmp_path / "mutant"
    read = refused = 0
    for index in range(300):
        text = bytearray(chance.choice(list(DOCUMENTS.values())))
        for _ in range(chance.randrange(1, 5)):
            at, size = chance.randrange(len(text)), chance.choice((0, 1, 1, 1, 40))
            put = bytes(chance.choice(b'{}[]",:\\ 07.-e\x00\x01\xff') for _ in range(size))
            text[at : at + chance.choice((0, 1, 1, 300))] = put
        data = bytes(text)
        if index % 3 == 0:
            packed = bytearray(gzip.compress(data))
            packed[chance.randrange(len(packed))] ^= 1 << chance.randrange(8)
            data = bytes(packed)
        path.write_bytes(data)
        told: list[Trace | str] = []
        for decoder in DECODERS:
            monkeypatch.setattr(reader, "_decoder", lambda path, decoder=decoder: decoder())
            try:
                told.append(reader.parse(path))
            except RidgelineError as error:
                told.append(error.message)
        if isinstance(told[0], str) or isinstance(told[-1], str):
            assert told[0] == told[-1]
            refused += 1
        else:
            assert differences(told[0], told[-1]) == []
            read += 1
    assert read + refused == 300
    assert read > 200


@pytest.mark.parametrize(("damaged", "refused"), [(5, False), (6, True), (10, True)])
def test_a_trace_that_lost_most_of_its_events_is_refused(
    tmp_path: Path, damaged: int, refused: bool
) -> None:
    events = [{**GOOD, "ts": i, **({"dur": "no time"} if i < damaged else {})} for i in range(10)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    if not refused:
        assert open_trace(path).trace.origin.events == 10 - damaged
        return
    with pytest.raises(RidgelineError) as error:
        open_trace(path)
    assert error.value.exit_code == 4
