from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ridgeline.fixes.catalog import non_blocking
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Skip
from ridgeline.source.editing.patching import patched
from tests.unit.fixes.seams_here import Here, applied, code, no_source, option


def tensor(pinned: bool = True, version: int = 0, device: str = "cpu") -> Any:
    return SimpleNamespace(
        device=torch.device(device),
        _version=version,
        is_pinned=lambda: pinned,
        is_inference=lambda: False,
    )


def goes(source: Any, *args: Any, **kwargs: Any) -> bool:
    return non_blocking.to_gpu(torch, source, args, kwargs)


def test_only_pinned_memory_on_its_way_to_a_gpu_is_not_waited_for() -> None:
    cuda = torch.device("cuda")
    assert goes(tensor(), cuda)
    assert goes(tensor(), "cuda:1")
    assert goes(tensor(), 0)
    assert goes(tensor(), device="cuda", dtype=torch.float16)
    assert not goes(tensor(pinned=False), cuda)
    assert not goes(tensor(device="meta"), cuda)
    assert not goes(tensor(), "cpu")
    assert not goes(tensor(), torch.float16)
    assert not goes(tensor(), dtype=torch.float16)
    assert not goes(tensor(), True)


def test_a_choice_of_the_programs_own_is_left() -> None:
    assert not goes(tensor(), "cuda", torch.float16, False)


def test_a_buffer_that_is_written_again_is_waited_for() -> None:
    assert not goes(tensor(version=1), "cuda")


def test_a_tensor_without_a_version_is_left() -> None:
    with torch.inference_mode():
        assert not goes(torch.ones(2), "cuda")


def test_nothing_is_wrapped_without_a_gpu() -> None:
    before = torch.Tensor.to
    program = Here("cpu")
    non_blocking.apply(program, {})
    assert torch.Tensor.to is before
    assert code(program.why_not) == Skip.NO_GPU
    assert code(non_blocking.reason_to_skip(Ground())) == Skip.NO_GPU


def test_each_copy_of_a_line_is_written(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "x, y = x.to(device), y.to(device)\n"
        "z = z.cuda()\n"
        "loss = loss_of(x.to(device), y).to('cpu').to(torch.float64)\n"
    )
    places = tuple(f"{file}:{line}" for line in (1, 2, 3))
    copies = applied("non-blocking", option("to", "non_blocking", True), places=places)
    edits = non_blocking.source_edits(copies, no_source)
    done = patched(str(file), file.read_bytes(), edits)
    assert not done.refused
    assert "x.to(device, non_blocking=True), y.to(device, non_blocking=True)" in done.text
    assert "z.cuda(non_blocking=True)" in done.text
    assert "loss_of(x.to(device, non_blocking=True), y).to('cpu').to(torch.float64)" in done.text
