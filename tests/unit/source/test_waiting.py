"""Which of a function's lines may be the one that waits."""

from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFiles
from ridgeline.source.waiting import branches, calls, masks, printed, read_numbers

HERE = Place(file="train.py", line=1, function="main")


def lines(text: str, find, *given) -> list[int]:  # type: ignore[no-untyped-def]
    return [line.number for line in find(SourceFiles(texts={"train.py": text}), HERE, *given)]


def test_the_innermost_loop_comes_first_and_what_is_asked_now_and_then_last() -> None:
    text = """\
def main():
    a.item()
    for step in r:
        if step % 10 == 0:
            b.item()
        c.item()
        for p in ps:
            d.item()
"""
    assert lines(text, read_numbers) == [8, 6, 5, 2]


def test_the_line_the_trace_names_itself_comes_before_all() -> None:
    text = "def main():\n    x.to(d)\n    for i in r:\n        y.to(d)\n"
    sources = SourceFiles(texts={"train.py": text})
    at = Place(file="train.py", line=2, function="main")
    assert calls(sources, at, {"to"})[0].number == 2


def test_tests_on_what_the_host_has_are_no_branches_on_tensors() -> None:
    text = """\
def main():
    n = len(x)
    if x is None or n > 3 or step % 2 == 0 or mode == "train":
        pass
    if isinstance(x, list) or loss.item() > 1 or self.training:
        pass
    while not done.all():
        pass
    top = x.max()
    y = 1 if top > 3 else 2
"""
    assert lines(text, branches) == [7, 10]


def test_masks_are_told_from_indices() -> None:
    text = """\
def main():
    a = x[0] + x[i] + x[1:] + x["k"]
    b = x[x > 0]
    c = x[~m]
    keep = (x > 0) & (x < 9)
    d = x[keep]
    e = x[self.valid, 1]
"""
    assert lines(text, masks) == [3, 4, 6, 7]


def test_prints_of_texts_counts_and_numbers_are_passed_over() -> None:
    text = """\
def main():
    for step, x in enumerate(data):
        print("a", step, len(x), x.mean().item())
        print(f"{step} {x.item():.2f}")
        print("b", x)
        print(f"{step} {x:.2f}")
"""
    assert lines(text, printed, "print") == [5, 6]
    assert lines(text, printed) == [6]


def test_a_file_that_cannot_be_read_has_no_lines() -> None:
    assert calls(SourceFiles(), HERE, {"to"}) == ()
    assert read_numbers(SourceFiles(texts={"train.py": "def ("}), HERE) == ()
    assert branches(SourceFiles(), None) == ()
