"""A simulated CUDA caching allocator that records what torch records, and a GPT training on it.

`SimulatedAllocator` follows torch's rules (sizes rounded to 512 bytes, segments of 2 MiB for small
blocks, of 20 MiB for medium ones, best fit, splitting, joining) and returns snapshots of the same
shape as `torch.cuda.memory._snapshot()`. It knows the truth that a reader of the snapshot has to
find: the peak, the live blocks at the peak by kind, and which line leaks.
"""

import bisect
import gzip
import pickle
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SMALL_BYTES = 1 << 20
SMALL_SEGMENT_BYTES = 2 << 20
MEDIUM_BYTES = 10 << 20
MEDIUM_SEGMENT_BYTES = 20 << 20
ROUND_LARGE_BYTES = 2 << 20
CUBLAS_WORKSPACE_BYTES = 8_519_680

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
_MODULE = f"{TORCH}/nn/modules/module.py"

Frame = tuple[str, int, str]
_OPERATOR_FRAMES: tuple[Frame, ...] = tuple(
    (file, 100 + number, name)
    for number, (file, name) in enumerate(
        (
            ("python_torch_functions.cpp", "torch::autograd::THPVariable_linear(_object*)"),
            ("Operators.cpp", "at::_ops::linear::call(at::Tensor const&)"),
            ("VariableType.cpp", "torch::autograd::VariableType::(anonymous namespace)::linear"),
            ("KernelFunction_impl.h", "c10::impl::wrap_kernel_functor_unboxed_<>::call"),
            ("Linear.cpp", "at::native::linear(at::Tensor const&)"),
            ("Operators.cpp", "at::_ops::addmm::redispatch(c10::DispatchKeySet)"),
            ("RegisterCUDA.cpp", "at::(anonymous namespace)::wrapper_CUDA_addmm"),
            ("Blas.cpp", "at::native::structured_addmm_out_cuda::impl"),
            ("EmptyTensor.cpp", "at::detail::empty_generic(c10::ArrayRef<long>)"),
            ("EmptyTensor.cpp", "at::detail::_empty_strided_generic<c10::ArrayRef<long> >"),
            ("StorageImpl.h", "c10::StorageImpl::StorageImpl(c10::StorageImpl::use_byte_size_t)"),
            ("CUDACachingAllocator.cpp", "c10::cuda::CUDACachingAllocator::Native::allocate"),
            ("CUDACachingAllocator.cpp", "c10::cuda::CUDACachingAllocator::Native::malloc"),
            ("CUDACachingAllocator.cpp", "gather_with_cpp()"),
        )
    )
)
_INTERPRETER_FRAME: Frame = ("??", 0, "_PyEval_EvalFrameDefault")
_ENGINE_FRAMES: tuple[Frame, ...] = tuple(
    ("engine.cpp", 900 + number, name)
    for number, name in enumerate(
        (
            "clone3",
            "start_thread",
            "torch::autograd::python::PythonEngine::thread_init(int)",
            "torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)",
            "torch::autograd::Engine::evaluate_function(std::shared_ptr<GraphTask>&)",
            "torch::autograd::Node::operator()(std::vector<at::Tensor>&&)",
            "torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)",
        )
    )
)


@dataclass
class Block:
    address: int
    size: int
    segment: "Segment"
    requested: int = 0
    is_used: bool = False
    frames: list[dict[str, Any]] = field(default_factory=list)
    kind: str = ""
    previous: "Block | None" = None
    next: "Block | None" = None


@dataclass
class Segment:
    address: int
    size: int
    is_small: bool
    first: Block | None = None
    frames: list[dict[str, Any]] = field(default_factory=list)


class OutOfMemory(Exception):
    pass


class SimulatedAllocator:
    def __init__(
        self,
        device: int = 0,
        *,
        total_bytes: int = 80 << 30,
        max_entries: int | None = None,
        records: bool = True,
        has_stacks: bool = True,
        has_native_frames: bool = False,
    ) -> None:
        self.device = device
        self.total_bytes = total_bytes
        self.max_entries = max_entries
        self.records = records
        self.has_stacks = has_stacks
        self.has_native_frames = has_native_frames
        self.events: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.stack: list[Frame] = []
        self.segments: list[Segment] = []
        self.now_us = 1_763_000_000_000_000
        self.requested = self.allocated = self.reserved = 0
        self.peak = 0
        self.peak_us = self.now_us
        self.peak_by_kind: Counter[str] = Counter()
        self._by_kind: Counter[str] = Counter()
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._free_blocks: dict[int, Block] = {}
        self._next_address = 0x7F0000000000 + (device << 38)
        self._frames: dict[Frame, dict[str, Any]] = {}
        self._stacks: dict[tuple[Frame, ...], list[dict[str, Any]]] = {}

    # ---------------------------------------------------------------- stacks

    @contextmanager
    def at(self, *frames: Frame) -> Iterator[None]:
        """Run with these frames on the stack, outermost first."""
        self.stack.extend(frames)
        try:
            yield
        finally:
            del self.stack[-len(frames) :]

    @contextmanager
    def module(self, file: str, line: int, name: str = "forward") -> Iterator[None]:
        with self.at(
            (_MODULE, 1775, "_wrapped_call_impl"), (_MODULE, 1786, "_call_impl"), (file, line, name)
        ):
            yield

    @contextmanager
    def backward_thread(self) -> Iterator[None]:
        """Run without a Python stack, as autograd's thread for CUDA does."""
        kept, self.stack = self.stack, []
        try:
            yield
        finally:
            self.stack = kept

    def frames(self) -> list[dict[str, Any]]:
        if not self.has_stacks:
            return []
        key = tuple(self.stack)
        if self.has_native_frames:  # stacks="all", which is torch's default
            python = [part for frame in key for part in (frame, _INTERPRETER_FRAME)]
            key = (*(python or _ENGINE_FRAMES), *_OPERATOR_FRAMES)
        known = self._stacks.get(key)
        if known is None:
            known = [self._frame(frame) for frame in reversed(key)]
            self._stacks[key] = known
        return list(known)  # torch makes a list for each event, of shared frames

    def _frame(self, frame: Frame) -> dict[str, Any]:
        if frame not in self._frames:
            file, line, name = frame
            self._frames[frame] = {"filename": file, "line": line, "name": name}
        return self._frames[frame]

    # ---------------------------------------------------------------- blocks

    def allocate(self, size: int, kind: str) -> Block:
        rounded = max(512, -(-size // 512) * 512)
        is_small = rounded <= SMALL_BYTES
        block = self._fitting(rounded, is_small) or self._new_segment(size, rounded, is_small)
        self._split(block, rounded, is_small)
        block.is_used, block.requested, block.kind = True, size, kind
        block.frames = self.frames()
        self.requested += size
        self.allocated += block.size
        self._by_kind[kind] += size
        self.record("alloc", block.address, size, block.frames)
        if self.requested > self.peak:
            self.peak, self.peak_us = self.requested, self.now_us
            self.peak_by_kind = self._by_kind.copy()
        return block

    def free(self, block: Block) -> None:
        assert block.is_used
        frames = self.frames()
        self.record("free_requested", block.address, block.requested, frames)
        self.record("free_completed", block.address, block.requested, frames)
        self.requested -= block.requested
        self.allocated -= block.size
        self._by_kind[block.kind] -= block.requested
        block.is_used, block.frames = False, []
        for other in (block.previous, block.next):
            if other is not None and not other.is_used:
                self._take(other)
                first, second = sorted((block, other), key=lambda b: b.address)
                first.size += second.size
                first.next = second.next
                if second.next is not None:
                    second.next.previous = first
                block = first
        self._give(block)

    def empty_cache(self, frames: tuple[Frame, ...] = ()) -> None:
        with self.at(*frames) if frames else self.at(*self.stack[-1:]):
            for segment in [s for s in self.segments if _is_empty(s)]:
                assert segment.first is not None
                self._take(segment.first)
                self.segments.remove(segment)
                self.reserved -= segment.size
                self.record("segment_free", segment.address, segment.size, self.frames())

    def _fitting(self, size: int, is_small: bool) -> Block | None:
        ordered = self._free[is_small]
        place = bisect.bisect_left(ordered, (size, 0))
        if place == len(ordered):
            return None
        block = self._free_blocks[ordered[place][1]]
        self._take(block)
        return block

    def _new_segment(self, asked: int, rounded: int, is_small: bool) -> Block:
        size = (
            SMALL_SEGMENT_BYTES
            if is_small
            else MEDIUM_SEGMENT_BYTES
            if rounded < MEDIUM_BYTES
            else -(-rounded // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES
        )
        if self.reserved + size > self.total_bytes:
            self.empty_cache()
        if self.reserved + size > self.total_bytes:
            self._event(
                {
                    "action": "oom",
                    "device_free": self.total_bytes - self.reserved,
                    "size": asked,
                    "stream": 0,
                    "frames": self.frames(),
                }
            )
            raise OutOfMemory
        segment = Segment(self._next_address, size, is_small, frames=self.frames())
        self._next_address += size + ROUND_LARGE_BYTES
        segment.first = Block(segment.address, size, segment)
        self.segments.append(segment)
        self.reserved += size
        self.record("segment_alloc", segment.address, size, segment.frames)
        return segment.first

    def _split(self, block: Block, size: int, is_small: bool) -> None:
        left = block.size - size
        if left < (512 if is_small else SMALL_BYTES + 1):
            return
        rest = Block(block.address + size, left, block.segment, previous=block, next=block.next)
        if block.next is not None:
            block.next.previous = rest
        block.next, block.size = rest, size
        self._give(rest)

    def _give(self, block: Block) -> None:
        bisect.insort(self._free[block.segment.is_small], (block.size, block.address))
        self._free_blocks[block.address] = block

    def _take(self, block: Block) -> None:
        ordered = self._free[block.segment.is_small]
        del ordered[bisect.bisect_left(ordered, (block.size, block.address))]
        del self._free_blocks[block.address]

    # ---------------------------------------------------------------- records

    def record(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        self._event(
            {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames}
        )

    def _event(self, event: dict[str, Any]) -> None:
        self.now_us += 3
        if not self.records:
            return
        event |= {
            "time_us": self.now_us,
            "compile_context": "/".join(("N", "A")),  # a new text each time, as from C++
            "user_metadata": "",
        }
        self.events.append(event)

    def annotate(self, name: str, stage: str) -> None:
        self.annotations.append(
            {"name": name, "stage": stage, "device": self.device, "time_us": self.now_us}
        )

    def device_trace(self) -> list[dict[str, Any]]:
        return self.events if self.max_entries is None else self.events[-self.max_entries :]

    def segment_records(self) -> list[dict[str, Any]]:
        return [self._segment_record(segment) for segment in self.segments]

    def _segment_record(self, segment: Segment) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        block = segment.first
        while block is not None:
            blocks.append(
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested if block.is_used else block.size,
                    "state": "active_allocated" if block.is_used else "inactive",
                    "frames": block.frames,
                }
            )
            block = block.next
        used = [b for b in blocks if b["state"] == "active_allocated"]
        return {
            "device": self.device,
            "address": segment.address,
            "total_size": segment.size,
            "allocated_size": sum(b["size"] for b in used),
            "active_size": sum(b["size"] for b in used),
            "requested_size": sum(b["requested_size"] for b in used),
            "stream": 0,
            "segment_type": "small" if segment.is_small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": segment.frames,
            "blocks": blocks,
        }


def _is_empty(segment: Segment) -> bool:
    return segment.first is not None and segment.first.next is None and not segment.first.is_used


def snapshot(*allocators: SimulatedAllocator) -> dict[str, Any]:
    """Return what `torch.cuda.memory._snapshot()` returns in torch 2.11."""
    devices = 1 + max((a.device for a in allocators), default=-1)
    traces: list[list[dict[str, Any]]] = [[] for _ in range(devices)]
    for allocator in allocators:
        traces[allocator.device] = allocator.device_trace()
    return {
        "segments": [record for a in allocators for record in a.segment_records()],
        "device_traces": traces,
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [note for a in allocators for note in a.annotations],
    }


def write(path: Path, data: object, protocol: int = 4) -> Path:
    """Pickle `data` to `path`, packed if its name ends in .gz."""
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(pickle.dumps(data, protocol=protocol), compresslevel=1))
        return path
    with path.open("wb") as file:
        pickle.dump(data, file, protocol=protocol)
    return path


# -------------------------------------------------------------------- a GPT


@dataclass
class Gpt:
    """A GPT's training on the simulated allocator, in float32 with Adam."""

    memory: SimulatedAllocator
    layers: int = 4
    width: int = 256
    tokens: int = 2048
    vocabulary: int = 8192
    leaks: bool = False
    """Whether the loop keeps a tensor of every step: `history.append(loss)`."""
    keeps_gradients: bool = False
    """Whether gradients stay until the next backward, because nobody sets them to None."""
    annotates: bool = False
    has_loop: bool = True
    """Whether one line calls all layers, so that their stacks are alike."""
    file: str = "/home/user/project/model.py"
    script: str = "/home/user/project/train.py"
    outer: tuple[Frame, ...] = ()
    """Frames below the script's own: a trainer, a launcher."""
    kept: list[Block] = field(default_factory=list)
    parameters: list[Block] = field(default_factory=list)
    states: list[Block] = field(default_factory=list)
    gradients: list[Block] = field(default_factory=list)

    def build(self) -> None:
        sizes = [self.vocabulary * self.width * 4]
        for _ in range(self.layers):
            sizes += [4 * self.width, 4 * self.width]
            sizes += [12 * self.width * self.width, 4 * self.width * self.width]
            sizes += [16 * self.width * self.width, 16 * self.width * self.width]
        with self.memory.at(
            (self.script, 20, "<module>"),
            (_MODULE, 1371, "to"),
            (_MODULE, 930, "_apply"),
            (_MODULE, 957, "_apply"),
            (_MODULE, 1357, "convert"),
        ):
            self.parameters = [self.memory.allocate(size, "parameter") for size in sizes]

    def train(self, steps: int, first: int = 0) -> None:
        for number in range(first, first + steps):
            self.step(number)

    def step(self, number: int) -> None:
        memory = self.memory
        memory.stack[:] = self.outer
        if self.annotates:
            memory.annotate(f"ProfilerStep#{number}", "START")
        memory.now_us += 200
        with memory.at((self.script, 60, "<module>"), (self.script, 31, "train")):
            batch = memory.allocate(self.tokens * 8, "input")
        with memory.at((self.script, 60, "<module>"), (self.script, 33, "train")):
            saved = self._forward(number)
        memory.now_us += 500
        with memory.backward_thread():
            self._backward(saved)
        if self.leaks:
            self.kept.append(saved[-1])
        else:
            memory.free(saved[-1])
        memory.free(batch)
        with memory.at((self.script, 60, "<module>"), (self.script, 36, "train")):
            self._optimizer_step()
        if not self.keeps_gradients:
            with memory.at(
                (self.script, 60, "<module>"),
                (self.script, 37, "train"),
                (f"{TORCH}/optim/optimizer.py", 1002, "zero_grad"),
            ):
                for gradient in self.gradients:
                    memory.free(gradient)
                self.gradients = []
        if self.annotates:
            memory.annotate(f"ProfilerStep#{number}", "END")
        memory.stack[:] = []

    def _forward(self, number: int) -> list[Block]:
        memory, hidden = self.memory, self.tokens * self.width * 4
        saved: list[Block] = []
        with memory.module(self.file, 120):
            with memory.module(f"{TORCH}/nn/modules/sparse.py", 190):
                saved.append(memory.allocate(hidden, "activation"))
            for layer in range(self.layers):
                with memory.module(self.file, 90 if self.has_loop else 1000 + layer):
                    with memory.at((self.file, 91, "forward")):
                        saved.append(memory.allocate(hidden, "activation"))
                    with memory.module(self.file, 60):
                        with memory.module(f"{TORCH}/nn/modules/linear.py", 125):
                            saved.append(memory.allocate(3 * hidden, "activation"))
                            if number == 0 and not self.states and len(saved) == 3:
                                memory.allocate(CUBLAS_WORKSPACE_BYTES, "workspace")
                        with memory.at((self.file, 64, "forward")):
                            passing = memory.allocate(hidden, "temporary")
                            saved.append(memory.allocate(hidden, "activation"))
                        memory.free(passing)
                    with memory.module(self.file, 75):
                        with memory.module(f"{TORCH}/nn/modules/linear.py", 125):
                            saved.append(memory.allocate(4 * hidden, "activation"))
                        with memory.module(f"{TORCH}/nn/modules/activation.py", 734):
                            saved.append(memory.allocate(4 * hidden, "activation"))
                    passing = memory.allocate(hidden, "temporary")
                    memory.free(passing)
            with memory.module(f"{TORCH}/nn/modules/linear.py", 125):
                saved.append(memory.allocate(self.tokens * self.vocabulary * 4, "activation"))
            with memory.at(
                (self.file, 131, "forward"), (f"{TORCH}/nn/functional.py", 3462, "cross_entropy")
            ):
                saved.append(memory.allocate(self.tokens * self.vocabulary * 4, "activation"))
                saved.append(memory.allocate(4, "activation"))
        return saved

    def _backward(self, saved: list[Block]) -> None:
        memory = self.memory
        makes = not self.gradients
        gradients: list[Block] = []
        parameters = list(reversed(self.parameters))
        for number, block in enumerate(reversed(saved[:-1])):
            passing = memory.allocate(block.requested, "temporary")
            memory.free(block)
            if makes and number < len(parameters):
                size = parameters[number].requested
                gradients.append(memory.allocate(size, "gradient"))
            memory.free(passing)
        for parameter in parameters[len(saved) - 1 :] if makes else ():
            gradients.append(memory.allocate(parameter.requested, "gradient"))
        if makes:
            self.gradients = gradients

    def _optimizer_step(self) -> None:
        memory, optim = self.memory, f"{TORCH}/optim"
        with memory.at(
            (f"{optim}/optimizer.py", 516, "wrapper"), (f"{optim}/adam.py", 236, "step")
        ):
            if not self.states:
                with memory.at((f"{optim}/adam.py", 176, "_init_group")):
                    for parameter in self.parameters:
                        for _ in range(2):
                            block = memory.allocate(parameter.requested, "optimizer state")
                            self.states.append(block)
            with memory.at(
                (f"{optim}/adam.py", 249, "adam"), (f"{optim}/adam.py", 774, "_multi_tensor_adam")
            ):
                passing = [memory.allocate(p.requested, "temporary") for p in self.parameters]
                for block in passing:
                    memory.free(block)


def trained(steps: int = 6, *, device: int = 0, **options: Any) -> Gpt:
    """Return a GPT that was built and trained for some steps. Options of the allocator begin with
    its own names."""
    own = ("total_bytes", "max_entries", "records", "has_stacks", "has_native_frames")
    allocator = SimulatedAllocator(device, **{k: options.pop(k) for k in own if k in options})
    gpt = Gpt(allocator, **options)
    gpt.build()
    gpt.train(steps)
    return gpt


def truth(memory: SimulatedAllocator) -> dict[str, int]:
    """Return the bytes of each kind at the peak."""
    return {kind: size for kind, size in memory.peak_by_kind.items() if size}


def by_kind(blocks: list[Block]) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for block in blocks:
        sums[block.kind] += block.requested
    return dict(sums)
