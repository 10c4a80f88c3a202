"""Loops in a program's source."""

from ridgeline.records.trace import Place
from ridgeline.source.file import SourceFiles
from ridgeline.source.loops import loops_at, loops_calling

SOURCE = """class Cell:
    def forward(self, x, h):
        return x + h
class Net:
    def __init__(self):
        self.cell = Cell()
    def forward(self, x):
        for t in range(9):
            h = self.cell(x[t], h)
        return [step(r) for r in x]
def step(row):
    return row ** 2
def main():
    while True:
        loss = net(x)
        loss.backward()
        for p in net.parameters():
            total += p.grad.norm() ** 2
"""
FILES = SourceFiles(texts={"a.py": SOURCE})


def at(line: int, function: str = "") -> Place:
    return Place(file="a.py", line=line, function=function)


def test_innermost_loops_come_first() -> None:
    inner, outer = loops_at(FILES, at(13))
    assert (inner.line, inner.over, inner.target) == (17, "net.parameters()", "p")
    assert inner.attributes == {"parameters", "grad", "norm"}
    assert inner.squares
    assert not inner.trains
    assert (outer.line, outer.trains) == (14, True)


def test_recurrences_and_collections_are_told() -> None:
    rows, steps = sorted(loops_at(FILES, at(7)), key=lambda loop: -loop.line)
    assert (steps.line, steps.carried, steps.collects) == (8, "h", False)
    assert (rows.line, rows.carried, rows.collects) == (10, "", True)
    assert rows.function == "forward"


def test_callers_loops_are_found_by_function_and_by_module() -> None:
    (by_name,) = loops_calling(FILES, at(11, "step"))
    assert by_name.line == 10
    (by_module,) = loops_calling(FILES, at(2, "forward"))
    assert by_module.line == 8


def test_what_cannot_be_read_has_no_loops() -> None:
    assert loops_at(FILES, None) == ()
    assert loops_at(FILES, Place(file="b.py", line=1)) == ()
    assert loops_calling(FILES, at(2, "<lambda>")) == ()
    source = FILES.get("a.py")
    assert source is not None
    assert source.function_name(15) == "main"


def test_loops_over_a_models_layers() -> None:
    heads = {
        "for l in layers:\n    x = x + torch.tanh(l(x))": True,
        "for i, l in enumerate(self.many):\n    x = l(x)": True,
        "for i in range(9):\n    x = self.many[i](x)": True,
        "for l in net.children():\n    x = l.mix(x)": True,
        "self.blocks = nn.ModuleList()\nfor b in self.blocks[1:]:\n    x = b.mix(x)": True,
        "[head(x) for head in heads]": True,
        "for row in x:\n    y.append(mix(row))": False,
        "for t in range(9):\n    h = self.cell(x[t], h)": False,
        "self.blocks = [4, 5]\nfor b in self.blocks:\n    x = mix(x[b])": False,
    }
    for text, said in heads.items():
        (loop,) = loops_at(SourceFiles(texts={"b.py": text}), Place(file="b.py", line=1))
        assert loop.over_modules is said, text
