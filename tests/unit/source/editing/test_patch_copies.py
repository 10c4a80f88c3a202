"""Copies of a script and of the modules it imports run on each other, not on the originals."""

import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.records.edit import Edit, Rewrite
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import ByHand, Obstacle
from ridgeline.source.editing import copies, write_copy
from ridgeline.source.editing.copies import Copies, is_ours

MODEL = "VALUE = 1\nOTHER = 5\n"
LAYOUTS: dict[str, tuple[str, dict[str, str]]] = {
    "names": ("model.py", {"train.py": "from model import VALUE, OTHER\nprint(VALUE)\n"}),
    "in brackets": (
        "model.py",
        {"train.py": "from model import (  # ours\n    VALUE,\n    OTHER,\n)\nprint(VALUE)\n"},
    ),
    "a star": ("model.py", {"train.py": "from model import *\nprint(VALUE)\n"}),
    "the module": ("model.py", {"train.py": "import os, model\nprint(model.VALUE)\n"}),
    "under another name": ("model.py", {"train.py": "import model as m\nprint(m.VALUE)\n"}),
    "inside a function": (
        "model.py",
        {"train.py": "def main():\n    import model\n    print(model.VALUE)\nmain()\n"},
    ),
    "of a package": (
        "pkg/model.py",
        {"pkg/__init__.py": "", "train.py": "from pkg.model import VALUE\nprint(VALUE)\n"},
    ),
    "a package without a file": (
        "pkg/model.py", {"train.py": "from pkg.model import VALUE\nprint(VALUE)\n"}
    ),
    "a module of a package": (
        "pkg/model.py",
        {"pkg/__init__.py": "", "train.py": "from pkg import model\nprint(model.VALUE)\n"},
    ),
    "dotted, renamed": (
        "pkg/model.py",
        {"pkg/__init__.py": "", "train.py": "import pkg.model as m\nprint(m.VALUE)\n"},
    ),
    "through another module": (
        "pkg/model.py",
        {
            "pkg/__init__.py": "",
            "pkg/build.py": "from .model import VALUE\ndef f(): return VALUE\n",
            "train.py": "from pkg.build import f\nprint(f())\n",
        },
    ),
    "relative, two up": (
        "pkg/core/model.py",
        {
            "pkg/__init__.py": "", "pkg/core/__init__.py": "", "pkg/run/__init__.py": "",
            "pkg/run/build.py": "from ..core import model\ndef f(): return model.VALUE\n",
            "train.py": "import pkg.run.build as build\nprint(build.f())\n",
        },
    ),
    "given on by the package": (
        "pkg/model.py",
        {
            "pkg/__init__.py": '"""P."""\nfrom .model import VALUE\nfrom .rest import REST\n',
            "pkg/rest.py": "REST = 3\n",
            "train.py": "from pkg import VALUE as v, REST\nprint(v)\nassert REST == 3\n",
        },
    ),
    "given on by two packages": (
        "pkg/nets/model.py",
        {
            "pkg/__init__.py": "from .nets import *\n",
            "pkg/nets/__init__.py": "from .model import VALUE, OTHER\n",
            "train.py": "from pkg import VALUE\nprint(VALUE)\n",
        },
    ),
    "used by two files": (
        "model.py",
        {
            "a.py": "import model\n", "b.py": "import a\nimport model\nassert a.model is model\n",
            "train.py": "import b\nfrom model import VALUE\nprint(VALUE)\n",
        },
    ),
}  # fmt: skip
REFUSED: dict[str, tuple[str, dict[str, str], Obstacle]] = {
    "used by its whole name": (
        "pkg/model.py",
        {"pkg/__init__.py": "", "train.py": "import pkg.model\nprint(pkg.model.VALUE)\n"},
        Obstacle.USED_BY_WHOLE_NAME,
    ),
    "the file of a package": (
        "pkg/__init__.py",
        {"train.py": "from pkg import VALUE\nprint(VALUE)\n"},
        Obstacle.PACKAGE_FILE
    ),
    "a package that does more": (
        "pkg/model.py",
        {
            "pkg/__init__.py": "from .model import VALUE\nprint(VALUE)\n",
            "train.py": "from pkg import VALUE\n",
        },
        Obstacle.PACKAGE_DOES_MORE,
    ),
    "a name made at run time": (
        "model.py",
        {"train.py": "import importlib\nprint(importlib.import_module('mod' + 'el').VALUE)\n"},
        Obstacle.NO_IMPORT_LEADS_TO_IT,
    ),
    "several on a line": (
        "model.py", {"train.py": "import model; print(model.VALUE)\n"}, Obstacle.MORE_THAN_IMPORT
    ),
}  # fmt: skip


def made(tmp_path: Path, model: str, files: dict[str, str]) -> Path:
    for name, text in {model: MODEL, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "train.py"


def laid(script: Path, model: str) -> Copies:
    file = script.parent / model
    edit: Edit = Rewrite(
        file=str(file), first=1, last=1, before="VALUE = 1", after="VALUE = 2", why="w"
    )
    return copies(script, {file.resolve(): [edit]})


def said(script: Path) -> str:
    ran = subprocess.run([sys.executable, "-I", str(script)], capture_output=True, text=True)
    if ran.returncode and "No module named" in ran.stderr:  # -I keeps the folder out
        code = f"import sys, runpy; sys.path.insert(0, {str(script.parent)!r}); "
        code += f"runpy.run_path({str(script)!r}, run_name='__main__')"
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not ran.returncode, ran.stderr
    return ran.stdout.strip()


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_copy_of_the_script_runs_on_the_copy_of_the_module(name: str, tmp_path: Path) -> None:
    model, files = LAYOUTS[name]
    script = made(tmp_path, model, files)
    found = laid(script, model)
    assert not found.left
    for one in found.made:
        write_copy(one.patched, one.to, overwrite=True)
    assert found.made[0].to == tmp_path / "optimized_train.py"
    assert said(found.made[0].to) == "2"
    assert said(script) == "1"


@pytest.mark.parametrize("name", REFUSED)
def test_an_import_that_cannot_be_led_is_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    model, files, obstacle = REFUSED[name]
    found = laid(made(tmp_path, model, files), model)
    assert not found.made
    assert found.left[0][1].code == obstacle


def test_a_file_of_the_user_s_keeps_its_name(tmp_path: Path) -> None:
    script = made(tmp_path, *LAYOUTS["names"])
    theirs = tmp_path / "optimized_model.py"
    theirs.write_text("mine = 1\n")
    found = laid(script, "model.py")
    assert [one.to.name for one in found.made] == ["optimized_train.py", "optimized_model_2.py"]
    assert "from optimized_model_2 import VALUE" in found.made[0].patched.text
    facts = {"file": "optimized_model.py", "copy": "optimized_model_2.py"}
    assert found.taken == (because(ByHand.NAME_TAKEN, **facts),)


def test_a_copy_is_ours_until_it_is_changed(tmp_path: Path) -> None:
    for head in ("", "#!/usr/bin/python\n# -*- coding: latin-1 -*-\n"):
        script = made(tmp_path, *LAYOUTS["names"])
        script.write_bytes((head + "import model\nx = 'é'\n").encode("latin-1" if head else "utf8"))
        (first, _) = laid(script, "model.py").made
        write_copy(first.patched, first.to, overwrite=True)
        assert is_ours(first.to)
        assert b"import optimized_model as model\nx" in first.to.read_bytes()
        assert first.to.read_bytes().startswith(head.encode() + b"# written by ridgeline optimize")
        assert laid(script, "model.py").made[0].to == first.to
        first.to.write_bytes(first.to.read_bytes() + b"y = 2\n")
        assert not is_ours(first.to)
        assert laid(script, "model.py").made[0].to.name == "optimized_train_2.py"
        first.to.unlink()
