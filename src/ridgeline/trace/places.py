"""The user's own line: from Python stacks, the innermost function that is not a library's.

Kineto strips the search path from file names, so `site-packages/transformers/x.py` is recorded as
`transformers/x.py`. Libraries are therefore also recognised by their first folder. The line is the
first line of the function; in traces before 2022, it is the line that was running.
"""

import re
import sys
from functools import cached_property

import numpy as np

from ridgeline.records.trace import Place
from ridgeline.trace.columns import Events
from ridgeline.trace.intervals import Times, innermost
from ridgeline.trace.links import Links, Rows, by_lane, enclosing
from ridgeline.trace.trace import Trace, once_per_trace

_FRAME = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<function>.*)$")
_LIBRARY = re.compile(
    r"site-packages|dist-packages|[/\\]lib[/\\]python3?\.?\d*|torchinductor_|^<|^nn\.Module"
)
_LIBRARIES = frozenset({
    "torch", "torchvision", "torchaudio", "torchtext", "transformers", "accelerate", "lightning",
    "pytorch_lightning", "lightning_fabric", "diffusers", "datasets", "tokenizers", "peft", "trl",
    "timm", "vllm", "sglang", "triton", "xformers", "flash_attn", "deepspeed", "megatron", "apex",
    "numpy", "scipy", "pandas", "PIL", "cv2", "sklearn", "tqdm", "wandb", "tensorboard", "einops",
    "torchmetrics", "torchao", "bitsandbytes", "safetensors", "huggingface_hub", "ray", "fsspec",
    "albumentations", "kornia", "monai", "pydantic", "IPython", "ipykernel", "ridgeline", "yaml",
    "requests", "urllib3", "aiohttp", "matplotlib", "fire", "click", "hydra", "omegaconf",
})  # fmt: skip
_STANDARD = frozenset(sys.stdlib_module_names)
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:[/\\]")
_TORCH_SOURCE = re.compile(
    r"[/\\]torch[/\\](?:nn|autograd|utils|optim|cuda|profiler|distributed|_|functional\.py)"
)
"""Files of a torch that was built from source, outside any site-packages."""


def place_of(frame: str) -> Place | None:
    """Return a recorded function as a place; None where its name has another form."""
    match = _FRAME.match(frame)
    if match is None:
        return None
    return Place(file=match["file"], line=int(match["line"][:9]), function=match["function"])


def is_own(frame: str) -> bool:
    """Return whether a function is the user's, not a library's or the interpreter's."""
    match = _FRAME.match(frame)
    if match is None or _LIBRARY.search(match["file"]):
        return False
    if _ABSOLUTE.match(match["file"]):  # nothing was stripped: /code/train.py is no standard module
        return _TORCH_SOURCE.search(match["file"]) is None
    first = re.split(r"[/\\]", match["file"].lstrip("./\\"))[0]
    return first not in _LIBRARIES and first.removesuffix(".py") not in _STANDARD


def is_not_torch(frame: str) -> bool:
    """Return whether a function is neither torch's nor the interpreter's."""
    match = _FRAME.match(frame)
    if match is None or frame.startswith("<"):
        return False
    parts = re.split(r"[/\\]", match["file"].lstrip("./\\"))
    return "torch" not in parts and parts[0].removesuffix(".py") not in _STANDARD


class Places:
    """Looks up in which function of the user's a thread was at given moments."""

    def __init__(self, trace: Trace, links: Links) -> None:
        self._trace = trace
        self._links = links

    @property
    def known(self) -> bool:
        return bool(len(self._trace.frames)) or self._has_stacks

    def at(self, lanes: Rows, times: Times) -> Rows:
        """Return for each moment on a lane the code of the user's function (a text); -1 where none
        is known."""
        codes = np.full(len(times), -1, np.int64)
        for lane in np.unique(lanes):
            rows = np.flatnonzero(lanes == lane)
            codes[rows] = self._on_lane(int(lane), times[rows])
        return codes

    def at_or_main(self, lanes: Rows, times: Times) -> Rows:
        """Return the same as `at`. Where a lane has no function of the user's (the backward's
        thread has none), the function of the main thread at that moment stands in."""
        found = self.at(lanes, times)
        main = self._links.main_lane
        unknown = np.flatnonzero((found == -1) & (lanes != main))
        found[unknown] = self.at(np.full(len(unknown), main), times[unknown])
        return found

    def place(self, code: int) -> Place | None:
        """Return the place with a code that `at` returned; None for -1."""
        return place_of(self.text(code)) if code != -1 else None

    def calls_at(self, lane: int, times: Times) -> tuple[Rows, Rows]:
        """Return for each moment two rows of `Trace.frames`: the user's innermost function, and the
        function that it called directly. A row is -1 if there is none."""
        inner = self._innermost(lane, times)
        own = np.where(inner >= 0, self._own_above[np.maximum(inner, 0)], -1)
        callee = np.where(inner == own, -1, inner)
        while True:
            above = np.where(callee >= 0, self._links.frame_parent[np.maximum(callee, 0)], -1)
            climbing = (callee >= 0) & (above >= 0) & (above != own)
            if not climbing.any():
                return own, callee
            callee = np.where(climbing, above, callee)

    def caller_of(self, row: int) -> int:
        """Return the row of the user's function that called the function of this row, or -1."""
        above = int(self._links.frame_parent[row])
        return int(self._own_above[above]) if above >= 0 else -1

    def _on_lane(self, lane: int, times: Times) -> Rows:
        if lane not in self._by_lane:
            return self._from_stacks(lane, times)
        row = self._innermost(lane, times)
        own = np.where(row >= 0, self._own_above[np.maximum(row, 0)], -1)
        return np.where(own >= 0, self._trace.frames.name[np.maximum(own, 0)], -1)

    def _innermost(self, lane: int, times: Times) -> Rows:
        """Return for each moment the row of the innermost function on that lane, or -1."""
        frames = self._by_lane.get(lane)
        if frames is None:
            return np.full(len(times), -1, np.int64)
        table = self._trace.frames
        local = np.full(len(table), -1, np.int64)
        local[frames] = np.arange(len(frames))
        above = self._links.frame_parent[frames]
        above = np.where(above >= 0, local[np.maximum(above, 0)], -1)
        inner = innermost(table.ts[frames], table.end[frames], times, above)
        return np.where(inner >= 0, frames[np.maximum(inner, 0)], -1)

    @cached_property
    def _by_lane(self) -> dict[int, Rows]:
        table = self._trace.frames
        return {int(table.lane[rows[0]]): rows for rows in by_lane(table)}

    @cached_property
    def _own_above(self) -> Rows:
        """Return for each function its nearest caller (or itself) that is the user's; -1 where
        there is none."""
        table = self._trace.frames
        own = self._trace.names_where(table.name, is_own)
        if not own.any():  # a library run as a program: its own functions are the user's
            own = self._trace.names_where(table.name, is_not_torch)
        rows = np.arange(len(table))
        goal = np.where(own, rows, self._links.frame_parent)
        while True:  # each round doubles how far up it has looked
            further = np.where(goal >= 0, goal[np.maximum(goal, 0)], -1)
            if np.array_equal(further, goal):
                return np.where((goal >= 0) & own[np.maximum(goal, 0)], goal, -1)
            goal = further

    # ------------------------------------------------------------ traces before 2022

    @cached_property
    def _has_stacks(self) -> bool:
        return any(code != -1 for code in self._stack_codes.values())

    @cached_property
    def _stack_codes(self) -> dict[int, int]:
        """Return for each info with a call stack the code of the user's frame in it."""
        found: dict[int, int] = {}
        for code in np.unique(self._trace.ops.info).tolist():
            stack = self._trace.info(code).get("Call stack") if code >= 0 else None
            if not isinstance(stack, str):
                continue
            own = next((f for f in stack.split(";") if is_own(f)), None)
            found[code] = -1 if own is None else -2 - self._index(own)
        return found

    @cached_property
    def stack_texts(self) -> list[str]:
        """Return the frames that are not texts of the trace: code -2 is the first."""
        return []

    def _index(self, frame: str) -> int:
        if frame not in self.stack_texts:
            self.stack_texts.append(frame)
        return self.stack_texts.index(frame)

    def _from_stacks(self, lane: int, times: Times) -> Rows:
        ops = self._trace.ops
        rows = np.flatnonzero(ops.lane == lane)
        if not len(rows) or not self._has_stacks:
            return np.full(len(times), -1, np.int64)
        inner = innermost(ops.ts[rows], ops.end[rows], times)
        # between operators: the next one, whose stack the program was on its way to
        after = np.minimum(np.searchsorted(ops.ts[rows], times), len(rows) - 1)
        info = ops.info[rows[np.where(inner >= 0, inner, after)]]
        codes, back = np.unique(info, return_inverse=True)
        return np.array([self._stack_codes.get(int(c), -1) for c in codes], np.int64)[back]

    def text(self, code: int) -> str:
        return self.stack_texts[-2 - code] if code < -1 else self._trace.text(code)


MAX_PATH_FUNCTIONS = 8
"""The number of functions that are kept: the outermost ones, and the innermost one."""
_BUILT_IN = re.compile(r"^<built-in (?:method|function) (?P<name>\S+)")
_CALLED_FRAME = re.compile(r"^(?P<file>.+?)\(\d+\): (?P<function>.*)$")
_RIDGELINE_FILE = re.compile(r"(^|[/\\])ridgeline[/\\]")


@once_per_trace
def user_places(trace: Trace, links: Links) -> Places:
    """Return the places of a trace, the same for all analyses."""
    return Places(trace, links)


class CallPaths:
    def __init__(self, trace: Trace, links: Links) -> None:
        self._trace, self._links = trace, links
        self._named: dict[int, str] = {}

    def of(self, calls: Events) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
        """Return for each call the names of the functions between, outermost first, and their rows
        in `trace.frames`; nothing without Python stacks, or on a thread without Python."""
        if not len(self._trace.frames):
            return [((), ())] * len(calls)
        inner = enclosing(calls, self._trace.frames, self._links.frame_parent)
        return [self._up(int(row)) for row in inner]

    def _up(self, row: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
        rows: list[int] = []
        while row >= 0 and not self._own[row]:
            rows.append(row)
            row = int(self._links.frame_parent[row])
        if row < 0:  # a thread of no function of the user's
            return (), ()
        named = [(self._name(frame), frame) for frame in reversed(rows)]
        path = [(name, frame) for name, frame in named if name]
        if len(path) > MAX_PATH_FUNCTIONS:
            path = [*path[: MAX_PATH_FUNCTIONS - 1], path[-1]]
        return tuple(name for name, _ in path), tuple(frame for _, frame in path)

    @cached_property
    def _own(self) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        frames = self._trace.frames
        own = self._trace.names_where(frames.name, is_own)
        return own if own.any() else self._trace.names_where(frames.name, is_not_torch)

    def _name(self, row: int) -> str:
        code = int(self._trace.frames.name[row])
        if code not in self._named:
            self._named[code] = short_name(self._trace.text(code))
        return self._named[code]


def short_name(frame: str) -> str:
    """Return a short name: "item" for <built-in method item of Tensor object at 0x7f>,
    torch/_tensor.py:__repr__ for torch/_tensor.py(9): __repr__, and "" for a function of the
    profiler."""
    if (built_in := _BUILT_IN.match(frame)) is not None:
        return built_in["name"].rstrip(">")
    if _RIDGELINE_FILE.search(frame):
        return ""
    match = _CALLED_FRAME.match(frame)
    return f"{match['file']}:{match['function']}" if match is not None else frame


def rows_above(links: Links, row: int) -> Rows:
    """Return an operator and those around it, outermost first."""
    rows = []
    while row >= 0:
        rows.append(row)
        row = int(links.op_parent[row])
    return np.array(rows[::-1], np.int64)
