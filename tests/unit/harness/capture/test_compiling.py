"""What is remembered of torch.compile's work."""

from types import SimpleNamespace

import pytest

from ridgeline.harness.capture import recording


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    called_at: dict[str, str] = {}
    monkeypatch.setattr(recording, "_called_at", called_at)
    return called_at


def test_the_users_line_that_caused_a_compilation_is_remembered_once(
    remembered: dict[str, str],
) -> None:
    watching = recording.Compiling()
    watching._start(SimpleNamespace(compile_id="0/1"))
    first = dict(remembered)
    watching._start(SimpleNamespace(compile_id="0/1"))  # its backward, from another line
    assert list(first) == ["0/1"]
    assert first["0/1"].rpartition(":")[0] == __file__
    assert remembered == first


def test_a_callback_without_a_compilation_number_raises_nothing(remembered: dict[str, str]) -> None:
    watching = recording.Compiling()
    watching._start()
    watching._start(SimpleNamespace())
    assert remembered == {}
    assert watching.seen
