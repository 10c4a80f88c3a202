from pathlib import Path
from typing import Any

import pytest
from decoders import DECODERS

from ridgeline.trace.reading import reader
from ridgeline.trace.trace import Trace


@pytest.fixture(params=DECODERS, ids=lambda decoder: str(decoder.__name__))
def parse(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Reads bytes with one of the decoders."""
    monkeypatch.setattr(reader, "_decoder", lambda path: request.param())
    path = tmp_path / "damaged.json"

    def read(data: bytes) -> Trace:
        path.write_bytes(data)
        return reader.parse(path)

    return read
