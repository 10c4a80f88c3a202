"""The user's own line among library frames."""

from pathlib import Path

import numpy as np
import pytest
from traces_made import HOST, Made

from ridgeline.trace.links import Links
from ridgeline.trace.places import Places, is_own, place_of


@pytest.mark.parametrize(
    ("frame", "own"),
    [
        ("train.py(12): main", True),
        ("/home/me/project/data.py(41): __getitem__", True),
        ("src/models/net.py(9): forward", True),
        ("/code/train.py(12): main", True),
        ("/datasets/loading/data.py(12): read", True),
        ("/opt/pytorch/torch/nn/modules/module.py(1553): _call_impl", False),
        ("torch/nn/modules/module.py(1553): _call_impl", False),
        ("transformers/models/qwen2/modeling_qwen2.py(9): forward", False),
        ("/opt/env/lib/python3.11/site-packages/foo/bar.py(3): f", False),
        ("/usr/lib/python3.11/threading.py(3): run", False),
        ("threading.py(1002): run", False),
        ("<built-in function len>", False),
        ("nn.Module: Linear_3", False),
        ("<frozen importlib._bootstrap>(1007): _find_and_load", False),
    ],
)
def test_libraries_and_the_interpreter_are_not_the_users(frame: str, own: bool) -> None:
    assert is_own(frame) is own


def test_a_frame_is_file_line_and_function() -> None:
    place = place_of("a (copy).py(7): <module>")
    assert place is not None
    assert (place.file, place.line, place.function) == ("a (copy).py", 7, "<module>")
    assert place_of("nn.Module: Linear_3") is None


def at(made: Made, folder: Path, us: int) -> str:
    trace = made.trace(folder)
    places = Places(trace, Links(trace))
    lane = next(i for i, lane in enumerate(trace.lanes) if lane.tid == str(HOST))
    code = places.at(np.array([lane]), np.array([us * 1000]))[0]
    return places.text(int(code)) if code != -1 else ""


def test_the_innermost_own_function_is_found_through_library_frames(tmp_path: Path) -> None:
    made = Made().frame("train.py(3): <module>", 0, 1000).frame("train.py(12): main", 10, 900)
    made.frame("torch/nn/modules/module.py(1): _call_impl", 20, 500)
    made.frame("model.py(30): forward", 30, 400).frame("torch/functional.py(2): einsum", 40, 50)
    assert at(made, tmp_path, 60) == "model.py(30): forward"
    assert at(made, tmp_path, 500) == "train.py(12): main"
    assert at(made, tmp_path, 950) == "train.py(3): <module>"
    assert at(made, tmp_path, 2000) == ""


def test_a_library_run_as_a_program_is_its_own_user(tmp_path: Path) -> None:
    made = Made().frame("vllm/engine.py(3): step", 0, 100)
    made.frame("torch/functional.py(2): einsum", 10, 50)
    assert at(made, tmp_path, 20) == "vllm/engine.py(3): step"


def test_old_traces_carry_the_stack_on_the_operator(tmp_path: Path) -> None:
    stack = "/x/site-packages/torchvision/a.py(1): f;train.py(42): <module>"
    made = Made().op("aten::to", 0, 10, **{"Call stack": stack})
    made.op("aten::mm", 100, 10, **{"Call stack": "train.py(46): <module>"})
    assert at(made, tmp_path, 5) == "train.py(42): <module>"
    assert at(made, tmp_path, 50) == "train.py(46): <module>"  # on its way to the next operator
