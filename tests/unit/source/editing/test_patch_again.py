"""The same edits again change nothing, wherever the first time has moved the lines to."""

from ridgeline.records.edit import Edit, Import, Insert, Keyword, Replace, Top, Within
from ridgeline.source.editing import patched

TEXT = b'''"""Doc."""
import torch
from torch.utils.data import DataLoader

train = DataLoader(a, batch_size=4)
valid = DataLoader(
    b,
    num_workers=0,
)
for x in train:
    y = attention(
        x,
    )
    loss = f(y)
    loss.backward()
'''


def key(line: int, name: str, value: str) -> Keyword:
    return Keyword(file="f", line=line, call="DataLoader", name=name, value=value, why=f"{name} w")


EDITS: list[Edit] = [
    Top(file="f", where="start", text="import os\nos.environ['A'] = 'b'", why="env"),
    Import(file="f", text="import torch.nn.functional as F"),
    Top(file="f", where="after imports", text="torch.flag = True", why="flag"),
    key(5, "num_workers", "4"),
    key(5, "pin_memory", "True"),
    key(6, "num_workers", "2"),
    key(7, "pin_memory", "True"),
    Replace(file="f", line=11, before="attention(x)", after="F.attention(x)", why="sdpa"),
    Within(file="f", first=11, last=14, header='torch.autocast("cpu")', why="bf16"),
    Insert(file="f", line=11, where="before", text="x = x.to(memory_format=1)", why="layout"),
    Insert(file="f", line=14, where="after", text="if loss:\n    pass", why="after"),
    Insert(file="f", line=15, where="after", text="done()", why="end"),
]


def test_every_edit_is_found_again() -> None:
    first = patched("f", TEXT, EDITS)
    assert len(first.done) == len(EDITS)
    again = patched("f", first.text.encode(), EDITS)
    assert again.text == first.text
    assert again.already == tuple(EDITS)
    assert (again.done, again.refused, again.diff) == ((), (), "")


def test_each_edit_alone_is_found_again() -> None:
    for edit in EDITS:
        edits = [Import(file="f", text="import torch.nn.functional as F"), edit]
        first = patched("f", TEXT, edits)
        again = patched("f", first.text.encode(), edits)
        assert again.text == first.text
        assert edit in again.already


def test_one_given_twice_is_done_once() -> None:
    for edit in EDITS:
        result = patched("f", TEXT, [edit, edit])
        assert result.text == patched("f", TEXT, [edit]).text
        assert result.already == (edit,)


def test_a_patched_file_takes_further_edits_at_its_own_lines() -> None:
    text = patched("f", TEXT, [EDITS[0], key(5, "pin_memory", "True")]).text
    line = text.split("\n").index("valid = DataLoader(") + 1
    result = patched("f", text.encode(), [EDITS[0], key(line, "pin_memory", "True")])
    assert result.done == (key(line, "pin_memory", "True"),)
    assert result.text.count("pin_memory=True") == 2


def test_lines_of_the_text_are_those_of_the_text_as_given() -> None:
    alone = [patched("f", TEXT, [edit]).done for edit in EDITS]
    reverse = patched("f", TEXT, EDITS[::-1])
    assert len(reverse.done) == len(EDITS)
    assert alone.count(()) == 0
