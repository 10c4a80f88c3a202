"""What a call in the source is given, and the same call with less."""

import pytest

from ridgeline.source.calls import SourceCall, source_call, without_options
from ridgeline.source.file import SourceFile


def call(text: str) -> SourceCall:
    """Return the outermost call of an expression."""
    source = SourceFile("train.py", f"x = {text}\n")
    return source_call(source, min(source.calls, key=lambda node: node.col_offset))


def test_options_are_told_as_written() -> None:
    autocast = call("torch.autocast('cuda', cache_enabled = False)")
    assert (autocast.called, autocast.option("cache_enabled")) == ("torch.autocast", "False")
    assert autocast.option("dtype") == ""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x.to(torch.float32)", {"torch", "float32"}),
        ("x.to(device, dtype=y.dtype)", {"device", "dtype", "y"}),
        ("x.to('cuda')", {"cuda"}),
        ("set_num_threads(os.cpu_count() // 2)", {"os", "cpu_count"}),
    ],
)
def test_names_of_arguments_do_not_include_what_is_called(text: str, names: set[str]) -> None:
    assert call(text).argument_names == names


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("clip(p, 1e-3, foreach=False)", "clip(p, 1e-3)"),
        ("clip(p, foreach = False, error='a, b')", "clip(p, error='a, b')"),
        ("clip(foreach=False)", "clip()"),
        ("clip(\n    p,\n    foreach=False,\n)", "clip(p)"),
        ("clip(p, **settings)", "clip(p, **settings)"),
        ("not a call", "not a call"),
    ],
)
def test_an_option_is_left_out_and_the_rest_stays_as_written(text: str, left: str) -> None:
    assert without_options(text, ("foreach",)) == left
