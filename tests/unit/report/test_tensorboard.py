"""Event files that TensorBoard reads."""

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeline.report.document import Scalar, Scalars
from ridgeline.report.renderers import tensorboard

SCALARS = Scalars(
    name="1115-010203-train",
    times_s=[1.75e9, 1.75e9 + 0.25, 1.75e9 + 0.5],
    steps=[0, 300, 70_000],
    scalars=(
        Scalar("step/ms", [12.5, None, 3.25]),
        Scalar("loss", [-1e300, "nan", None]),
        Scalar("phases_ms/größe", [None, None, 1]),
    ),
)


def content(scalars: Scalars = SCALARS) -> bytes:
    (made,) = tensorboard.render([scalars]).values()
    return made


def records(data: bytes) -> Iterator[bytes]:
    while data:
        (length,) = struct.unpack_from("<Q", data)
        yield data[12 : 12 + length]
        data = data[16 + length :]


def test_lengths_have_the_checksum_that_every_event_file_begins_with() -> None:
    """The version record of TensorFlow's own files is 24 bytes long, and so begins with these."""
    assert tensorboard._checksum(struct.pack("<Q", 24)) == bytes.fromhex("a37f4b22")


def test_checksums_are_those_of_the_standard() -> None:
    """CRC-32C of "123456789" is 0xE3069283 in every table of checksums; then it is masked."""
    crc = 0xE3069283
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert tensorboard._checksum(b"123456789") == struct.pack("<I", masked)


def test_the_first_record_is_the_version() -> None:
    first, *rest = records(content())
    assert first.endswith(b"\x1a\x0dbrain.Event:2")
    assert len(rest) == 3


def test_a_path_is_the_same_each_time_and_each_process_has_its_folder() -> None:
    several = [SCALARS, Scalars(name="b/rank1", times_s=[7.5], steps=[0], scalars=())]
    paths = list(tensorboard.render(several))
    assert paths == list(tensorboard.render(several))
    assert [path.rpartition("/")[0] for path in paths] == ["1115-010203-train", "b/rank1"]
    assert all("tfevents" in path for path in paths)


def test_a_step_without_a_value_is_left_out() -> None:
    empty = Scalars(name="a", times_s=[1.0], steps=[0], scalars=(Scalar("loss", [None]),))
    assert len(list(records(content(empty)))) == 1


def test_of_a_long_run_every_nth_step_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "MAX_STEPS", 10)
    long = Scalars(
        name="a", times_s=[float(i) for i in range(101)], steps=list(range(101)),
        scalars=(Scalar("loss", [float(i) for i in range(101)]),),
    )  # fmt: skip
    assert tensorboard.stride([long]) == 11
    assert len(list(records(content(long)))) == 1 + 10


def test_tensorboard_itself_reads_the_same_values(tmp_path: Path) -> None:
    reading: Any = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="the package tensorboard is not installed: only the format's parts are tested",
    )
    for path, data in tensorboard.render([SCALARS]).items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(data)
    found = reading.EventAccumulator(str(tmp_path / SCALARS.name))
    found.Reload()
    assert found.Tags()["scalars"] == [scalar.name for scalar in SCALARS.scalars]
    assert [(e.step, e.value) for e in found.Scalars("step/ms")] == [(0, 12.5), (70_000, 3.25)]
    assert [e.wall_time for e in found.Scalars("step/ms")] == [1.75e9, 1.75e9 + 0.5]
    assert found.Scalars("loss")[0].value == -math.inf  # beyond single precision
    assert math.isnan(found.Scalars("loss")[1].value)
