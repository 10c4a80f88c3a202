"""What is no trace, or no file, is refused in one sentence."""

import gzip
import io
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
from decoders import Parse

from ridgeline.errors import RidgelineError
from ridgeline.trace.reading import reader


def _zip() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("trace.json", b"{}")
    return made.getvalue()


FOREIGN = {
    "empty": b"", "a byte": b"{", "spaces": b" \n" * 100, "text": b"hello there\n" * 50,
    "HTML": b"<!DOCTYPE html><html><script>var x = {\"a\": [1]}</script></html>",
    "pickle": pickle.dumps({"segments": []}), "old pickle": pickle.dumps([1], protocol=2),
    "zip": _zip(), "a number": b"17", "a string": b'"traceEvents"', "null": b"null",
    "an object": b'{"a": 1, "b": [{"c": 2}, {"d": 3}]}', "events are null": b'{"traceEvents":null}',
    "events are an object": b'{"traceEvents": {"ph": "X"}}', "zeros": b"\0" * 5000,
    "noise": random.Random(3).randbytes(20_000), "gzip of text": gzip.compress(b"hello" * 99),
    "gzip header": b"\x1f\x8b\x08", "zstd header": b"\x28\xb5\x2f\xfd", "lines": b'{"a":1}\n' * 500,
    "notebook": b'{"cells": [{"cell_type": "code", "source": ["x"]}], "nbformat": 4}',
    "bzip2": b"BZh91AY&SY", "ELF": b"\x7fELF\x02\x01\x01",
    "UTF-16": '{"traceEvents": []}'.encode("utf-16"),
}  # fmt: skip


@pytest.mark.parametrize("what", list(FOREIGN))
def test_a_file_that_is_no_trace_is_refused_in_one_sentence(parse: Parse, what: str) -> None:
    with pytest.raises(RidgelineError) as refused:
        parse(FOREIGN[what])
    message = refused.value.message
    assert "\n" not in message
    assert len(message.split(": ", 1)[1]) > 10


@pytest.mark.parametrize("place", ["", "missing.json", "a\0b"])
def test_what_is_no_file_is_refused_in_one_sentence(tmp_path: Path, place: str) -> None:
    with pytest.raises(RidgelineError):
        reader.parse(tmp_path / place)


def test_a_file_that_may_not_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the error itself: the tests may run as root, who may read everything."""
    path = tmp_path / "closed.json"
    path.write_text("{}")

    def closed(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", closed)
    with pytest.raises(RidgelineError, match="Permission denied"):
        reader.parse(path)
