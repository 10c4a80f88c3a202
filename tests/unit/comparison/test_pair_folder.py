"""Which files of a folder are pairs."""

from pathlib import Path

import pytest

from ridgeline.comparison.pair_folder import find_pairs, title_of
from ridgeline.errors import UsageError


def files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("")


def test_every_optimized_file_goes_with_the_longest_baseline_name(tmp_path: Path) -> None:
    files(
        tmp_path, "baseline_attention.py", "baseline_attention_window.py", "optimized_attention.py",
        "optimized_attention_flex.py", "optimized_attention_window_flex.py", "_shared.py",
    )  # fmt: skip
    found = {p.name: p.baseline.name for p in find_pairs(tmp_path) if p.baseline}
    assert found == {
        "attention": "baseline_attention.py",
        "attention_flex": "baseline_attention.py",
        "attention_window_flex": "baseline_attention_window.py",
    }


def test_a_name_that_only_begins_alike_is_no_pair(tmp_path: Path) -> None:
    files(tmp_path, "baseline_kv.py", "optimized_kvcache.py")
    found = find_pairs(tmp_path)
    assert [(p.name, p.baseline is None, p.optimized is None) for p in found] == [
        ("kv", False, True),
        ("kvcache", True, False),
    ]


def test_a_folder_without_pairs_is_told_what_a_pair_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no pairs") as caught:
        find_pairs(tmp_path)
    assert "workload()" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ('"""Eager attention.\n\nMore."""\n', "Eager attention"),
        ("x = 1\n", ""),
        ("def broken(:\n", ""),
    ],
)
def test_the_title_is_the_docstrings_first_line(tmp_path: Path, text: str, title: str) -> None:
    path = tmp_path / "baseline_x.py"
    path.write_text(text)
    assert title_of(path) == title
