"""Statements for the whole program, and imports."""

from typing import Literal

import pytest

from ridgeline.records.edit import Edit, Import, Patched, Top
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import ByHand, Obstacle
from ridgeline.source.editing import patched
from tests.unit.source.editing.refusals import causes

FLAG = "torch.backends.cudnn.benchmark = True"


def put(
    text: str, code: str = FLAG, where: Literal["start", "after imports"] = "after imports"
) -> Patched:
    return patched("f", text.encode(), [Top(file="f", where=where, text=code, why="w")])


def need(text: str, code: str) -> Patched:
    return patched("f", text.encode(), [Import(file="f", text=code, why="w")])


@pytest.mark.parametrize(
    "text",
    [
        "|import torch\n",
        '#!/bin/python\n# -*- coding: utf-8 -*-\n"""Doc."""\n|import torch\n',
        '"""Doc."""\nfrom __future__ import annotations\n\n|x = 1\n',
        '"""Doc."""\n|',
        "|",
        "# only a comment\n|",
    ],
)
def test_the_start_is_before_everything_that_need_not_come_first(text: str) -> None:
    before, after = text.split("|")
    result = put(before + after, 'import os\nos.environ["A"] = "b"', "start")
    assert result.text == f'{before}# ridgeline: w\nimport os\nos.environ["A"] = "b"\n{after}'


@pytest.mark.parametrize(
    "text",
    [
        "import torch\nimport os\n|x = 1\nimport later\n",
        "import os\nimport sys\nsys.path.insert(0, 'x')\nimport torch\nimport mine\n|x = 1\n",
        "import torch\ntry:\n    import a\nexcept ImportError:\n    a = None\n|\nx = 1\n",
        "import torch\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import b\n|x\n",
        "import torch.nn\n|if __name__ == '__main__':\n    import c\n",
        "import torch\n|",
    ],
)
def test_flags_come_after_the_imports_and_after_what_they_use(text: str) -> None:
    before, after = text.split("|")
    assert put(before + after).text == f"{before}# ridgeline: w\n{FLAG}\n{after}"


@pytest.mark.parametrize("rest", ["\n\nx = 1\n", "x = 1\n", ""])
def test_a_function_stands_apart_and_below_the_flags(rest: str) -> None:
    function = "def padded(x):\n    return torch.relu(x)"
    edits: list[Edit] = [
        Top(file="f", where="after imports", text=function, why="v"),
        Top(file="f", where="after imports", text=FLAG, why="w"),
    ]
    result = patched("f", f"import torch\n{rest}".encode(), edits)
    apart = "\n\n" if rest.startswith("x") else ""
    flag = f"import torch\n# ridgeline: w\n{FLAG}\n"
    assert result.text == f"{flag}\n\n# ridgeline: v\n{function}\n{apart}{rest}"
    assert patched("f", result.text.encode(), edits).text == result.text


@pytest.mark.parametrize(
    "text",
    [
        "import os\n",
        "import torch as th\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n",
        "def f():\n    import torch\n",
    ],
)
def test_a_name_that_is_not_bound_is_refused(text: str) -> None:
    result = put(text)
    cause = because(Obstacle.NOT_BOUND_AT_TOP, name="torch")
    facts = {"file": "f", "text": f"    {FLAG}"}
    assert result.refused[0].reason == because(ByHand.PUT_AFTER_IMPORTS, cause=cause, **facts)


def test_an_import_of_the_same_batch_binds_it() -> None:
    edits: list[Edit] = [
        Top(file="f", where="after imports", text=FLAG, why="w"),
        Import(file="f", text="import torch", why="v"),
    ]
    result = patched("f", b"import os\nx = 1\n", edits)
    expected = f"import os\n# ridgeline: v\nimport torch\n# ridgeline: w\n{FLAG}\nx = 1\n"
    assert result.text == expected


def test_what_stands_there_is_left() -> None:
    assert put(f"import torch\nx = 1\n{FLAG}  # mine\n").already


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import torch\n", "import torch"),
        ("import torch.nn as nn, torch.cuda\n", "import torch"),
        ("from torch.nn import functional as F\n", "import torch.nn.functional as F"),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None\n", "import torch"),
    ],
)
def test_a_name_that_is_bound_to_the_same_thing_is_enough(text: str, code: str) -> None:
    assert need(text, code).already


@pytest.mark.parametrize(
    "text",
    [
        "import os\n|x = 1\n",
        "import os\nos.environ['A'] = 'b'\nimport torch\n|def f(): pass\n",
        "import torch\n|import_later = 1\nimport os\n",
        '"""Doc."""\n|x = 1\n',
    ],
)
def test_an_import_goes_to_the_others(text: str) -> None:
    before, after = text.split("|")
    code = "import torch.nn.functional as F"
    assert need(before + after, code).text == f"{before}# ridgeline: w\n{code}\n{after}"


@pytest.mark.parametrize("text", ["F = 1\n", "import os as F\n", "def F(): pass\n"])
def test_a_name_bound_to_something_else_is_refused(text: str) -> None:
    result = need(text, "import torch.nn.functional as F")
    assert result.text == text
    assert causes(result) == [because(Obstacle.BOUND_TO_OTHER, name="F", line=1)]


def test_under_a_condition_it_is_not_bound() -> None:
    text = "if TYPE_CHECKING:\n    import torch\n"
    assert need(text, "import torch").done
