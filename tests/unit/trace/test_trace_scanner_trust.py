"""The compiled scanner is loaded only where no other user could have changed it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from decoders import LIBRARY

from ridgeline.trace.reading import compiled

pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no C compiler here")
_CACHED = (compiled._place, compiled._loaded, compiled._opened_or_built)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "_refusals", [])
    _forget()
    yield tmp_path
    _forget()


def _forget() -> None:
    """Forget what the module has cached, as in a new process."""
    for function in _CACHED:
        function.cache_clear()


def test_a_scanner_is_built_that_only_this_user_can_write() -> None:
    assert compiled.library() is not None
    assert compiled.refusal() == ""
    assert compiled._place().stat().st_mode & 0o077 == 0


def test_a_scanner_that_others_can_write_is_refused_and_built_again(cache: Path) -> None:
    compiled.library()
    scanner = compiled._place()
    scanner.unlink()  # a new file: the old one is mapped into this process
    scanner.write_bytes(b"another user's code")
    scanner.chmod(0o777)
    _forget()
    assert compiled.library(build=False) is None
    assert str(scanner) in compiled.refusal()
    assert compiled.library() is not None
    assert compiled.refusal() == ""


def test_no_scanner_is_built_or_loaded_in_a_folder_that_others_can_write_to(cache: Path) -> None:
    compiled.library()
    cache.chmod(0o777)
    _forget()
    assert compiled.library() is None
    assert str(cache) in compiled.refusal()
