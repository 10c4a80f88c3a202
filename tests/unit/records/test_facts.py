import pytest

from ridgeline.records.facts import Place


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("train.py:12", Place("train.py", 12)),
        ("/home/me/a:b/train.py:12:main", Place("/home/me/a:b/train.py", 12, "main")),
        ("train.py", Place("train.py")),
        ("", None),
    ],
)
def test_a_stored_place_is_read_back(text: str, place: Place | None) -> None:
    assert Place.parse(text) == place


def test_a_place_is_shown_as_file_and_line() -> None:
    assert str(Place("train.py", 12, "main")) == "train.py:12"
    assert str(Place("train.py")) == "train.py"
