import pytest

from ridgeline.records.trace import Place
from ridgeline.source.calls import call_on_line, evaluates, kind_of
from ridgeline.source.file import SourceFiles

TEXT = """\
for epoch in epochs:
    torch.save(model.state_dict(), path)
    image.save("a.png")
    ranked = sorted(history)
    losses = [float(x) for x in values] + list(more)
    print(len(losses)); torch.cuda.empty_cache()
    torch.save(
        collect_state(model),
        path,
    )


def check(model, loader):
    model.eval()
    return sum(model(x) for x in loader)


def distill(model, teacher):
    teacher.eval()
    loss(model, teacher).backward()


def validate_all(model):
    return model
"""
SOURCES = SourceFiles(texts={"a.py": TEXT})


@pytest.mark.parametrize(
    ("line", "name", "kind"),
    [
        (2, "save", "checkpoint"),
        (3, "save", "other"),
        (4, "sorted", "other"),
        (6, "empty_cache", "collection"),
        (8, "save", "checkpoint"),
    ],
)
def test_what_a_line_calls(line: int, name: str, kind: str) -> None:
    call = call_on_line(SOURCES, Place(file="a.py", line=line))
    assert call is not None
    assert (call.name, kind_of(call)) == (name, kind)


def test_a_function_that_is_known_to_be_called_is_named() -> None:
    call = call_on_line(SOURCES, Place(file="a.py", line=8), "collect_state")
    assert call is not None
    assert call.name == "collect_state"


def test_a_line_with_several_calls_side_by_side_names_none() -> None:
    assert call_on_line(SOURCES, Place(file="a.py", line=5)) is None


def test_a_file_that_cannot_be_read_says_nothing() -> None:
    assert call_on_line(SOURCES, Place(file="gone.py", line=2)) is None
    assert kind_of(None) == "other"


@pytest.mark.parametrize(
    ("line", "function", "expected"),
    [(15, "check", True), (20, "distill", False), (24, "validate_all", True), (2, "", False)],
)
def test_which_functions_evaluate(line: int, function: str, expected: bool) -> None:
    place = Place(file="a.py", line=line, function=function)
    assert evaluates(SOURCES, place) is expected
