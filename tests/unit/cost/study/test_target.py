"""A target named on the command line: found and built, or a sentence that says why not."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from ridgeline.cost.study.target import build_target, load_target
from ridgeline.errors import OutOfMemoryError, RidgelineError, TargetError, UsageError
from ridgeline.harness.usercode.load import explain, user_line

SOURCE = """
import torch
from torch import nn
from neighbour import WIDTH

number = 7
ready = nn.Linear(WIDTH, 1)

def build(): return nn.Linear(WIDTH, WIDTH)
def with_tensor(): return build(), torch.ones(2, WIDTH)
def with_list(): return build(), [torch.ones(2, WIDTH)]
def with_names(): return build(), {"input": torch.ones(2, WIDTH)}
def text(): return "model"
def raises():
    raise ValueError("first line\\nsecond line")
def exits(): raise SystemExit("bye")
def exhausts(): raise MemoryError("cannot")
class Wide(nn.Linear):
    def __init__(self, width): super().__init__(width, width)
class Zoo:
    @staticmethod
    def small(): return build()
"""


@pytest.fixture(autouse=True)
def _imports_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "neighbour.py").write_text("WIDTH = 3\n")
    path = tmp_path / "a_users_net.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.fixture
def two_folders(tmp_path: Path) -> tuple[str, str]:
    """The same names in both: net.py, and beside it layers.py of width 3 or 5."""
    for folder, width in (("one", 3), ("other", 5)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "layers.py").write_text(f"WIDTH = {width}\n")
        (tmp_path / folder / "net.py").write_text(
            "from torch import nn\nfrom layers import WIDTH\n"
            "def build(): return nn.Linear(WIDTH, WIDTH, bias=False)\n"
        )
    return f"{tmp_path}/one/net.py:build", f"{tmp_path}/other/net.py:build"


def size(target: str) -> int:
    return sum(p.numel() for p in build_target(target).model.parameters())


def test_a_function_in_a_file_is_called_and_its_neighbours_import(net: str) -> None:
    subject = build_target(f"{net}:build")
    assert isinstance(subject.model, nn.Linear)
    assert subject.args is None
    assert subject.kwargs == {}


def test_modules_of_the_same_name_in_two_folders_are_not_confused(
    two_folders: tuple[str, str],
) -> None:
    one, other = two_folders
    assert [size(target) for target in (one, other, one)] == [9, 25, 9]


def test_modules_are_not_confused_after_two_targets_of_one_file(
    two_folders: tuple[str, str],
) -> None:
    one, other = two_folders
    assert [size(target) for target in (one, one, other)] == [9, 9, 25]


def test_a_file_in_a_package_may_import_relatively(tmp_path: Path) -> None:
    package = tmp_path / "a_users_package" / "models"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package.parent / "sizes.py").write_text("WIDTH = 7\n")
    (package / "net.py").write_text(
        "from torch import nn\nfrom ..sizes import WIDTH\n"
        "def build(): return nn.Linear(WIDTH, 1, bias=False)\n"
    )
    assert size(f"{package}/net.py:build") == 7


def test_a_module_that_is_already_built_is_taken_as_it_is(net: str) -> None:
    assert build_target(f"{net}:ready").model.out_features == 1


def test_a_dotted_name_reaches_into_a_class(net: str) -> None:
    assert isinstance(build_target(f"{net}:Zoo.small").model, nn.Linear)


def test_a_package_target_is_imported() -> None:
    assert load_target("torch.nn:Identity") is nn.Identity


@pytest.mark.parametrize("name", ["with_tensor", "with_list"])
def test_inputs_come_with_the_module(net: str, name: str) -> None:
    subject = build_target(f"{net}:{name}")
    assert subject.args is not None
    assert [tuple(a.shape) for a in subject.args] == [(2, 3)]


def test_named_inputs_come_with_the_module(net: str) -> None:
    subject = build_target(f"{net}:with_names")
    assert subject.args == ()
    assert list(subject.kwargs) == ["input"]


def test_on_meta_nothing_is_allocated(net: str) -> None:
    assert all(p.is_meta for p in build_target(f"{net}:build", meta=True).model.parameters())


@pytest.mark.parametrize("target", ["net.py", ":build", "net.py:", ""])
def test_a_target_without_both_halves_is_a_usage_error(target: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_target(target)
    assert "file.py:callable" in caught.value.hint


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        load_target(f"{tmp_path}/none.py:build")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder") as caught:
        load_target(f"{tmp_path}/:build")
    assert caught.value.hint == "name the file in it, with .py"


def test_a_file_of_another_kind_is_not_python(tmp_path: Path) -> None:
    (tmp_path / "net.txt").write_text("def build(): ...\n")
    with pytest.raises(UsageError, match=r"net\.txt is not a Python file") as caught:
        load_target(f"{tmp_path}/net.txt:build")
    assert ".py" in caught.value.hint


def test_a_class_that_needs_arguments_gets_a_hint(net: str) -> None:
    with pytest.raises(TargetError, match="missing 1 required positional argument") as caught:
        build_target(f"{net}:Wide")
    assert caught.value.hint == "name a function without arguments that builds the model"


def test_a_missing_package_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no_such_package_anywhere") as caught:
        load_target("no_such_package_anywhere.models:build")
    assert ".py" in caught.value.hint


def test_a_missing_import_inside_the_file_is_named_as_that(tmp_path: Path) -> None:
    path = tmp_path / "wants_more.py"
    path.write_text("import no_such_package_anywhere\n")
    with pytest.raises(TargetError, match=r"wants_more.py:1.*no_such_package_anywhere"):
        load_target(f"{path}:build")


def test_a_syntax_error_becomes_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "half_written.py"
    path.write_text("def build(:\n")
    with pytest.raises(TargetError, match="SyntaxError"):
        load_target(f"{path}:build")


def test_a_misspelt_name_gets_a_suggestion(net: str) -> None:
    with pytest.raises(UsageError, match="nothing called 'biuld'") as caught:
        load_target(f"{net}:biuld")
    assert caught.value.hint == "did you mean build?"


def test_a_name_like_no_other_gets_a_list_of_what_there_is(net: str) -> None:
    with pytest.raises(UsageError, match="nothing called 'qqq'") as caught:
        load_target(f"{net}:qqq")
    assert caught.value.hint.startswith("it has: build, with_tensor, ")


def test_a_number_is_not_a_builder(net: str) -> None:
    with pytest.raises(TargetError, match="is a int"):
        load_target(f"{net}:number")


def test_what_is_returned_must_be_a_module(net: str) -> None:
    with pytest.raises(TargetError, match="returned a str"):
        build_target(f"{net}:text")


def test_an_exception_becomes_one_sentence_with_its_line(net: str) -> None:
    with pytest.raises(TargetError) as caught:
        build_target(f"{net}:raises")
    message = caught.value.message
    assert message.endswith("raised ValueError at a_users_net.py:15: first line")
    assert "second line" not in message


def test_a_builder_that_exits_does_not_end_us(net: str) -> None:
    with pytest.raises(TargetError, match=r"SystemExit.*bye"):
        build_target(f"{net}:exits")


def test_out_of_memory_is_its_own_error_with_a_hint(net: str) -> None:
    with pytest.raises(OutOfMemoryError) as caught:
        build_target(f"{net}:exhausts")
    assert "--meta" in caught.value.hint


def test_weights_beyond_the_room_are_refused_before_they_are_made(net: str) -> None:
    with pytest.raises(OutOfMemoryError, match=r"0\.0 GiB are free") as caught:
        build_target(f"{net}:build", room_bytes=47)
    assert "--meta" in caught.value.hint
    assert build_target(f"{net}:build", room_bytes=48).model is not None


def test_our_own_errors_pass_through_unchanged() -> None:
    ours = UsageError("told already", "hint")
    assert explain(ours, "building") is ours


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError("no"), True),
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("shapes cannot be multiplied"), False),
    ],
)
def test_memory_errors_are_distinguished_from_others(error: Exception, is_memory: bool) -> None:
    told = explain(error, "running", "hint")
    assert isinstance(told, RidgelineError)
    assert isinstance(told, OutOfMemoryError) is is_memory


def test_the_line_named_is_the_users_and_not_torchs(net: str) -> None:
    model = build_target(f"{net}:build").model
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(2, 99))
    assert user_line(caught.value).startswith("test_target.py:")
