"""Reads the stacks of a snapshot: the user's own line, the modules that were called, and which part
of a training (optimizer, backward, construction of the model …) allocated."""

import re
from collections.abc import Callable
from enum import IntFlag, auto
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ridgeline.memory.snapshot import Stacks
from ridgeline.records.facts import Place


class Part(IntFlag):
    """The work that a frame belongs to."""

    OWN = auto()
    """The program's own code."""
    LIBRARY = auto()
    """A Python library other than torch."""
    MODULE = auto()
    """A module is called."""
    FORWARD = auto()
    """A function called `forward` of a module that is not torch's."""
    CONSTRUCTION = auto()
    """A model is built, moved, converted or loaded."""
    CONSTRUCTOR = auto()
    """An object of the program's own is made."""
    MOVES = auto()
    """`Module._apply`, which moves parameters, then buffers."""
    OPTIMIZER = auto()
    UPDATE = auto()
    """The optimizer's step, and not `zero_grad`."""
    BACKWARD = auto()
    """Autograd runs."""
    RECOMPUTATION = auto()
    """Activations of a checkpointed block are computed again."""
    LOSS = auto()
    """A loss over classes is computed, from logits."""
    DATA = auto()
    """Data are loaded, collated, or moved to the device."""
    WORKSPACE = auto()
    """A library of the device takes its workspace."""
    BUCKET = auto()
    """Buckets of gradients for their exchange."""
    CACHE_RELEASE = auto()
    """`torch.cuda.empty_cache`."""
    NATIVE = auto()
    """C++ code."""


_LIBRARY = re.compile(
    r"site-packages|dist-packages|[/\\]lib[/\\]python3?\.?\d*[/\\]|torchinductor_|^<(?!ipython)"
)
_TORCH = re.compile(
    r"(^|(site|dist)-packages[/\\])torch[/\\]"
    r"|[/\\]torch[/\\](nn|autograd|utils|optim|cuda|profiler|distributed|amp|_|functional\.py)"
)
_PYTHON_FILE = re.compile(r"\.(py|pyc|ipynb)$|^<|[/\\][^./\\]+$")
"""Files of Python, among them programs without an ending such as bin/torchrun. All others are of
C++: engine.cpp, libtorch.so, thread48.o, ??."""
_OPTIMIZERS = re.compile(
    r"[/\\](torch[/\\]optim|bitsandbytes[/\\]optim|apex[/\\]optimizers|torchao[/\\]optim"
    r"|deepspeed[/\\]ops[/\\](adam|lamb|lion))[/\\](?!lr_scheduler|swa_utils)"
)
_CONSTRUCTORS = frozenset({
    "__init__", "reset_parameters", "to", "cuda", "half", "bfloat16", "float", "double", "to_empty",
    "load_state_dict", "register_buffer", "register_parameter", "requires_grad_",
})  # fmt: skip
_CONSTRUCTION_FILE = re.compile(
    r"[/\\]torch[/\\]nn[/\\](init|parameter)\.py$|[/\\]transformers[/\\]modeling_utils\.py$"
    r"|[/\\]torch[/\\]_?(serialization|weights_only_unpickler)\.py$"
)
_DATA_FUNCTION = re.compile(
    r"pin_memory|collate|get_batch|move_(data_|batch_)?to_device|send_to_device|batch_to_device"
    r"|to_device|_prepare_inputs|transfer_batch|next_batch|load_batch"
)
_LOSSES = frozenset({"cross_entropy", "nll_loss", "binary_cross_entropy_with_logits"})
_WORKSPACE = re.compile(
    r"getCurrentCUDABlasHandle|getWorkspace|[Cc]ublas.*[Ww]orkspace|cudnn.*[Ww]orkspace"
    r"|getCUDABlasLtWorkspace|_scaled_mm_workspace|cufft"
)
_ENGINE = re.compile(r"torch::autograd::(Engine|python::PythonEngine)|evaluate_function")
_AUTOGRAD_ENTRY = re.compile(r"[/\\]torch[/\\](autograd|utils[/\\]checkpoint|nn[/\\]parallel|_)")


def part_of(file: str, function: str) -> Part:
    """Return what one frame says."""
    name = function.rpartition(".")[2]
    if not _PYTHON_FILE.search(file) or "::" in function:
        part = Part.NATIVE
        if _WORKSPACE.search(function):
            part |= Part.WORKSPACE
        return part | Part.BACKWARD if _ENGINE.search(function) else part
    part = Part(0)
    if _OPTIMIZERS.search(file):
        part |= Part.OPTIMIZER if name == "zero_grad" else Part.OPTIMIZER | Part.UPDATE
    if _CONSTRUCTION_FILE.search(file):
        part |= Part.CONSTRUCTION
    if _TORCH.search(file):
        return part | _part_of_torch(file.replace("\\", "/"), name)
    part |= Part.LIBRARY if _LIBRARY.search(file) else Part.OWN
    if name == "forward":
        part |= Part.FORWARD
    if name == "__init__" and part & Part.OWN:
        part |= Part.CONSTRUCTOR
    if _DATA_FUNCTION.search(name):
        part |= Part.DATA
    return part


def _part_of_torch(file: str, name: str) -> Part:
    if file.endswith("nn/modules/module.py"):
        if name in ("_call_impl", "__call__", "_wrapped_call_impl"):
            return Part.MODULE
        if name == "_apply":
            return Part.CONSTRUCTION | Part.MOVES
        return Part.CONSTRUCTION if name in _CONSTRUCTORS else Part(0)
    if file.endswith("nn/parallel/distributed.py") and "init" in name:
        return Part.BUCKET
    if "/nn/modules/" in file and name in ("__init__", "reset_parameters"):
        return Part.CONSTRUCTION
    if file.endswith("nn/functional.py") and name in _LOSSES:
        return Part.LOSS
    if file.endswith("utils/checkpoint.py"):
        is_again = name in ("unpack_hook", "recompute_fn", "backward")
        return Part.RECOMPUTATION | Part.BACKWARD if is_again else Part(0)
    if "/utils/data/" in file:
        return Part.DATA
    if name == "_engine_run_backward":
        return Part.BACKWARD
    if file.endswith("cuda/memory.py") and name == "empty_cache":
        return Part.CACHE_RELEASE
    return Part(0)


class CallSites:
    """Reads the stacks of a snapshot. A stack is known by its number; -1 is no stack."""

    def __init__(self, stacks: Stacks) -> None:
        self.stacks = stacks
        self._modules: dict[int, str] = {}
        self._places: dict[int, tuple[Place | None, Place | None]] = {}

    @cached_property
    def frame_parts(self) -> NDArray[np.int64]:
        return np.array([part_of(file, name) for file, _, name in self.stacks.frames], np.int64)

    @cached_property
    def parts(self) -> NDArray[np.int64]:
        """The parts of all frames of each stack, joined. The last value, 0, is that of no stack."""
        parts = self.frame_parts
        joined = []
        for stack in range(len(self.stacks)):
            members = self.stacks.of(stack)
            part = int(np.bitwise_or.reduce(parts[members])) if members else 0
            joined.append(part | Part.BACKWARD if self._is_thread_of_torch(members) else part)
        return np.array([*joined, 0], np.int64)

    def _is_thread_of_torch(self, members: list[int]) -> bool:
        """Return whether Python was entered by torch itself: autograd's thread calls a Python
        function in the backward, while every other thread begins with a script or a library."""
        python = [m for m in members if not self.frame_parts[m] & Part.NATIVE]
        if not python or self.frame_parts[python[-1]] & (Part.OWN | Part.LIBRARY | Part.DATA):
            return False
        return bool(_AUTOGRAD_ENTRY.search(self.stacks.frames[python[-1]][0]))

    @cached_property
    def buffer_lines(self) -> frozenset[int]:
        """The frames of `Module._apply` that move buffers. It moves the parameters first, so that
        of several lines that move something the last moves buffers."""
        seen: set[int] = set()
        for stack in range(len(self.stacks)):
            if self.parts[stack] & Part.MOVES:
                members = self.stacks.of(stack)
                seen.add(next(m for m in members if self.frame_parts[m] & Part.MOVES))
        lines = sorted(seen, key=lambda number: self.stacks.frames[number][1])
        return frozenset(lines[-1:]) if len(lines) > 1 else frozenset()

    def moves_a_buffer(self, stack: int) -> bool:
        members = self.stacks.of(stack)
        moving = next((m for m in members if self.frame_parts[m] & Part.MOVES), -1)
        return moving in self.buffer_lines

    def place(self, stack: int) -> Place | None:
        """Return the innermost line of the user's own code. If a library was run as the program,
        it is that of the library."""
        return self._ends(stack)[0]

    def outer(self, stack: int) -> Place | None:
        """Return the outermost line of the user's own code, if it is another one."""
        return self._ends(stack)[1]

    def _ends(self, stack: int) -> tuple[Place | None, Place | None]:
        if stack not in self._places:
            own = self._frames(stack, lambda part: bool(part & Part.OWN))
            if not own:
                own = self._frames(stack, self._is_program)
            ends = [Place(*self.stacks.frames[number]) for number in own[:1] + own[-1:]]
            inner = ends[0] if ends else None
            outer = ends[-1] if ends and ends[-1] != inner else None
            self._places[stack] = inner, outer
        return self._places[stack]

    def innermost(self, stack: int) -> int:
        """Return the innermost frame of Python; -1 if the stack has none."""
        members = self.stacks.of(stack)
        return next((m for m in members if not self.frame_parts[m] & Part.NATIVE), -1)

    def is_own(self, frame: int) -> bool:
        return bool(self.frame_parts[frame] & Part.OWN)

    def _is_program(self, part: int) -> bool:
        return bool(part & Part.LIBRARY)

    def _frames(self, stack: int, wanted: Callable[[int], bool]) -> list[int]:
        members = self.stacks.of(stack)
        return [m for m in members if wanted(int(self.frame_parts[m]))]

    def module(self, stack: int) -> str:
        """Return the path of the innermost module that was called.

        Where functions are recorded with their classes it is GPT / Block / Linear. Else a module of
        the user's is known by the line that calls it, and one of torch's by its file: model.py:120
        / linear.
        """
        if stack not in self._modules:
            self._modules[stack] = " / ".join(self._path(stack))
        return self._modules[stack]

    def _path(self, stack: int) -> list[str]:
        path: list[str] = []
        caller, was_module = -1, False
        for frame in reversed(self.stacks.of(stack)):  # outermost first
            part = int(self.frame_parts[frame])
            if part & Part.NATIVE:  # C++ stands between any two functions of Python
                continue
            if part & Part.MODULE:
                was_module = True
                continue
            if was_module:
                file, _, function = self.stacks.frames[frame]
                path.append(self._module_name(file, function, part, caller))
            caller, was_module = frame, False
        return path

    def _module_name(self, file: str, function: str, part: int, caller: int) -> str:
        owner, _, _ = function.rpartition(".")
        if owner:
            return owner
        if not part & (Part.OWN | Part.LIBRARY):
            return file_name(file).removesuffix(".py")
        if caller < 0:
            return file_name(file)
        outer_file, line, _ = self.stacks.frames[caller]
        return f"{file_name(outer_file)}:{line}"


def file_name(path: str) -> str:
    """Return a file's name without its folders."""
    return re.split(r"[/\\]", path)[-1]
