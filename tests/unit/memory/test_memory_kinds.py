"""Kinds, steps and phases are found from stacks and lifetimes, without the process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.memory.call_sites import CallSites, Part, part_of
from ridgeline.memory.kinds import BlockKinds
from ridgeline.memory.snapshot import read_snapshot
from ridgeline.memory.study import study_snapshot
from ridgeline.memory.timeline import Timeline
from ridgeline.memory.training_steps import TrainingSteps
from ridgeline.records.memory import DeviceMemory, MemoryNote
from tests.unit.memory.simulated_allocator import (
    TORCH,
    Frame,
    Gpt,
    SimulatedAllocator,
    snapshot,
    trained,
    truth,
    write,
)

SCRIPT = "/home/user/train.py"
CALL: Frame = (f"{TORCH}/nn/modules/module.py", 1786, "_call_impl")


def studied(path: Path, memory: SimulatedAllocator) -> DeviceMemory:
    return study_snapshot(write(path / "x.pickle", snapshot(memory))).devices[0]


def kinds_of(path: Path, memory: SimulatedAllocator) -> BlockKinds:
    read = read_snapshot(write(path / "x.pickle", snapshot(memory)))
    return BlockKinds(TrainingSteps(Timeline(read, 0), CallSites(read.stacks)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"leaks": True},
        {"keeps_gradients": True},
        {"annotates": True},
        {"has_loop": False},
        {"max_entries": 400},
        {"has_native_frames": True},
        {"outer": ((f"{TORCH}/../lightning/trainer.py", 5, "fit"), ("/a/b/run.py", 7, "main"))},
    ],
)
def test_every_byte_of_the_peak_has_its_true_kind(
    options: dict[str, object], tmp_path: Path
) -> None:
    made = trained(6, layers=3, **options)
    found = {kind.value: size for kind, size in studied(tmp_path, made.memory).peak.by_kind.items()}
    assert found == truth(made.memory)


def test_gradients_are_told_from_temporaries_of_the_backward(tmp_path: Path) -> None:
    made = trained(3, layers=2)
    kinds = kinds_of(tmp_path, made.memory)
    moment = next(
        row
        for row in range(len(kinds.timeline) - 1, 0, -1)
        if kinds.steps.phase(row) == "optimizer" and kinds.timeline.action[row] == 0
    )
    totals = kinds.totals(kinds.timeline.blocks.live_at(moment))
    assert totals["gradient"] == sum(p.requested for p in made.parameters)  # type: ignore[index]


def test_what_is_older_than_the_recording_is_known_by_the_sizes_of_gradients(
    tmp_path: Path,
) -> None:
    memory = SimulatedAllocator(records=False, has_stacks=False)
    made = Gpt(memory, layers=2)
    made.build()
    made.train(2)
    memory.records = memory.has_stacks = True
    memory._stacks.clear()
    made.train(3, first=2)
    device = studied(tmp_path, memory)
    expected = truth(memory)
    assert device.peak.by_kind["parameter"] == expected["parameter"]  # type: ignore[index]
    assert device.peak.by_kind["optimizer state"] == expected["optimizer state"]  # type: ignore[index]
    assert MemoryNote.KINDS_BY_SIZE in {note.code for note in device.notes}
    assert device.peak.before_recording_bytes >= 3 * expected["parameter"]


def test_what_a_line_outside_of_the_model_keeps_is_no_input(tmp_path: Path) -> None:
    made = trained(1, layers=2)
    for number in range(1, 8):
        made.step(number)
        with made.memory.at((SCRIPT, 44, "train")):
            made.memory.allocate(1 << 20, "unknown")
    device = studied(tmp_path, made.memory)
    assert device.peak.by_kind["input"] == 2048 * 8  # type: ignore[index]
    assert [growth.kind for growth in device.growth] == ["unknown"]


def test_the_rest_after_the_last_step_is_no_step(tmp_path: Path) -> None:
    made = trained(8, layers=2)
    with made.memory.at((SCRIPT, 50, "save")):
        made.memory.free(made.memory.allocate(1 << 20, "unknown"))
    kinds = kinds_of(tmp_path, made.memory)
    assert kinds.steps.count == 8
    assert int(kinds.steps.step_of(kinds.steps.starts)[-1]) == 7


def test_without_a_backward_what_a_module_allocates_is_an_activation(tmp_path: Path) -> None:
    memory = SimulatedAllocator()
    with memory.at((SCRIPT, 9, "<module>")), memory.module("/home/user/net.py", 3):
        blocks = [memory.allocate(1 << 20, "activation") for _ in range(5)]
    for block in blocks:
        memory.free(block)
    device = studied(tmp_path, memory)
    assert set(device.peak.by_kind) == {"activation"}
    assert [way.reason.code for way in device.advice] == ["memory.no-gradients"]


def forward(memory: SimulatedAllocator, layers: int = 3) -> None:
    with memory.at((SCRIPT, 9, "<module>")), memory.module("/home/user/net.py", 3):
        saved = [memory.allocate(1 << 20, "activation") for _ in range(layers)]
    with memory.backward_thread():
        for block in saved:
            memory.free(memory.allocate(1 << 19, "temporary"))
            memory.free(block)


def by_optimizer(memory: SimulatedAllocator) -> None:
    forward(memory)
    with memory.at((SCRIPT, 11, "<module>"), (f"{TORCH}/optim/sgd.py", 5, "step")):
        memory.free(memory.allocate(512, "temporary"))


def by_zero_grad(memory: SimulatedAllocator) -> None:
    """A fused optimizer allocates nothing; zero_grad releases."""
    with memory.backward_thread():
        gradient = memory.allocate(4096, "gradient")
    forward(memory)
    with memory.at((SCRIPT, 12, "<module>"), (f"{TORCH}/optim/optimizer.py", 9, "zero_grad")):
        memory.free(gradient)


def by_annotations(memory: SimulatedAllocator) -> None:
    memory.annotate("ProfilerStep#1", "START")
    memory.now_us += 5
    forward(memory)


def by_repetition(memory: SimulatedAllocator) -> None:
    with memory.at((SCRIPT, 14, "<module>")):
        for line in (15, 16):
            with memory.at((SCRIPT, line, "generate")):
                memory.free(memory.allocate(1 << 20, "unknown"))


@pytest.mark.parametrize(
    "step", [forward, by_optimizer, by_zero_grad, by_annotations, by_repetition]
)
def test_steps_are_found(step: Callable[[SimulatedAllocator], None], tmp_path: Path) -> None:
    memory = SimulatedAllocator()
    for _ in range(7):
        step(memory)
    assert abs(kinds_of(tmp_path, memory).steps.count - 7) <= 1


def test_a_program_without_repetition_has_no_steps(tmp_path: Path) -> None:
    memory = SimulatedAllocator()
    for line in range(20):
        with memory.at((SCRIPT, line, "<module>")):
            memory.allocate(1000 * line + 1, "unknown")
    assert kinds_of(tmp_path, memory).steps.count == 0


def test_building_the_model_belongs_to_no_step(tmp_path: Path) -> None:
    kinds = kinds_of(tmp_path, trained(4, layers=2).memory)
    assert kinds.steps.starts[0] > 2 * 6 + 1
    assert kinds.steps.phase(1) == ""


def test_activations_that_are_computed_again_in_the_backward_are_activations(
    tmp_path: Path,
) -> None:
    memory = SimulatedAllocator()
    for _ in range(3):
        forward(memory)
        with memory.backward_thread():
            with memory.at((f"{TORCH}/utils/checkpoint.py", 8, "unpack_hook"),
                           (f"{TORCH}/utils/checkpoint.py", 9, "recompute_fn"),
                           CALL, ("/home/user/net.py", 5, "forward")):  # fmt: skip
                block = memory.allocate(64 << 20, "activation")
            memory.free(memory.allocate(512, "temporary"))
            memory.free(block)
    assert studied(tmp_path, memory).peak.by_kind["activation"] >= 64 << 20  # type: ignore[index]


def test_a_tensor_that_a_module_makes_once_and_keeps_is_a_buffer(tmp_path: Path) -> None:
    memory = SimulatedAllocator()
    with memory.at((SCRIPT, 9, "<module>")), memory.module("/home/user/rope.py", 30):
        memory.allocate(32 << 20, "buffer")
    for _ in range(5):
        by_optimizer(memory)
    assert studied(tmp_path, memory).peak.by_kind["buffer"] == 32 << 20  # type: ignore[index]


@pytest.mark.parametrize(
    ("file", "function", "part"),
    [
        ("/home/user/train.py", "main", Part.OWN),
        ("C:\\work\\train.py", "main", Part.OWN),
        ("<ipython-input-3>", "<module>", Part.OWN),
        ("/home/torch/train.py", "main", Part.OWN),
        ("/usr/lib/python3.11/runpy.py", "run_path", Part.LIBRARY),
        ("/v/site-packages/transformers/trainer.py", "train", Part.LIBRARY),
        (f"{TORCH}/optim/adamw.py", "step", Part.OPTIMIZER | Part.UPDATE),
        (f"{TORCH}/optim/optimizer.py", "zero_grad", Part.OPTIMIZER),
        (f"{TORCH}/optim/lr_scheduler.py", "step", Part(0)),
        ("/src/pytorch/torch/optim/sgd.py", "step", Part.OPTIMIZER | Part.UPDATE),
        (f"{TORCH}/nn/modules/module.py", "_call_impl", Part.MODULE),
        (f"{TORCH}/nn/modules/module.py", "Module._call_impl", Part.MODULE),
        (f"{TORCH}/nn/functional.py", "cross_entropy", Part.LOSS),
        ("thread48.o", "execute_native_thread_routine", Part.NATIVE),
        ("??", "_PyEval_EvalFrameDefault", Part.NATIVE),
        ("/opt/venv/bin/torchrun", "<module>", Part.OWN),
        ("", "at::cuda::getCurrentCUDABlasHandle()", Part.NATIVE | Part.WORKSPACE),
        ("engine.cpp", "torch::autograd::Engine::run()", Part.NATIVE | Part.BACKWARD),
    ],
)
def test_a_frame_says_which_work_it_belongs_to(file: str, function: str, part: Part) -> None:
    assert part_of(file, function) == part


def test_modules_are_known_by_the_lines_that_call_them_or_by_their_classes(tmp_path: Path) -> None:
    paths = []
    for names in (("forward", "forward"), ("Net.forward", "Block.forward")):
        memory = SimulatedAllocator(has_native_frames=True)
        with (
            memory.at((SCRIPT, 9, "<module>")),
            memory.module("/home/user/net.py", 3, names[0]),
            memory.module("/home/user/net.py", 8, names[1]),
            memory.module(f"{TORCH}/nn/modules/linear.py", 125),
        ):
            memory.allocate(1 << 20, "activation")
        paths += studied(tmp_path, memory).peak.by_module
    assert paths == ["train.py:9 / net.py:3 / linear", "Net / Block / linear"]


def test_the_layers_of_a_single_step_are_no_steps(tmp_path: Path) -> None:
    """One forward calls the same line for each layer, at even distances."""
    for has_backward in (True, False):
        memory = SimulatedAllocator()
        with memory.at((SCRIPT, 9, "<module>")), memory.module("/home/user/net.py", 3):
            memory.free(memory.allocate(1 << 20, "temporary"))
            for _ in range(24):
                with memory.at(("/home/user/net.py", 7, "forward")):
                    kept = memory.allocate(1 << 20, "activation")
                with memory.at(("/home/user/net.py", 8, "forward")):
                    memory.free(memory.allocate(1 << 22, "temporary"))
                memory.free(kept)
            with memory.at(("/home/user/net.py", 12, "forward")):
                memory.free(memory.allocate(1 << 22, "activation"))
        if has_backward:
            with memory.backward_thread():
                memory.free(memory.allocate(1 << 20, "temporary"))
        assert kinds_of(tmp_path, memory).steps.count == 0


def test_a_state_that_is_made_anew_in_each_step_is_known_by_what_releases_it(
    tmp_path: Path,
) -> None:
    memory = SimulatedAllocator(records=False, has_stacks=False)
    state = memory.allocate(1 << 24, "optimizer state")
    memory.records = memory.has_stacks = True
    memory._stacks.clear()
    by_optimizer(memory)
    with memory.at((SCRIPT, 11, "<module>"), (f"{TORCH}/optim/optimizer.py", 5, "wrapper")):
        memory.allocate(1 << 24, "optimizer state")
        memory.free(state)
    assert studied(tmp_path, memory).peak.by_kind["optimizer state"] == 2 << 24  # type: ignore[index]


def test_a_library_that_is_run_as_the_program_has_its_lines(tmp_path: Path) -> None:
    memory = SimulatedAllocator()
    with memory.at(("/v/site-packages/torchtune/train.py", 4, "main")):
        memory.allocate(1 << 20, "unknown")
    owner = studied(tmp_path, memory).peak.owners[0]
    assert owner.place is not None
    assert owner.place.line == 4
