"""Memory that grows for another reason than graphs."""

from typing import Any

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.memory_room import growth
from ridgeline.diagnosis.rules.kept_graphs import memory_leak as look
from ridgeline.records.run import OutOfMemory
from ridgeline.records.run_summary import MemoryUse
from ridgeline.records.step_work import StaysBehind
from ridgeline.records.trace import Place
from tests.unit.diagnosis.rules.made_up_memory import (
    FILE,
    GIB,
    KEEPS_GRAPH,
    KEEPS_NONE,
    KEEPS_TENSOR,
    MIB,
    case,
    growing,
)


def test_growth_and_the_line_that_keeps_tensors_agree() -> None:
    (finding,) = look(growing(KEEPS_TENSOR))
    assert finding.rule == "memory-leak"
    assert (finding.file, finding.line) == (FILE, 9)
    assert "`history` keeps 8 MiB of every step" in finding.claim
    assert finding.confidence == "high"
    assert finding.memory_pct == 100
    assert "deque(maxlen" in finding.change


def test_without_a_line_it_names_what_allocates_the_blocks_that_stay() -> None:
    made = growing(KEEPS_NONE)
    place = Place(file=FILE, line=3, function="main")
    stays = (StaysBehind(block_bytes=4 * MIB, blocks=2.0, ops=("aten::cat",), place=place),)
    assert made.traced_memory is not None
    (finding,) = look(replace(made, traced_memory=replace(made.traced_memory, stays=stays)))
    assert finding.place == f"{FILE}:3"
    assert finding.confidence == "medium"
    assert any("2 a step of 4 MiB, allocated by aten::cat" in e.text for e in finding.evidence)


BUFFER = """\
class Buffer:
    def __init__(self):
        self.seen, self.done, self.more = [], [], []

    def add(self, x, a):
        self.done.append(a)
        self.times.append(time.time())
        self.seen.append(x.repeat(1, 8))
"""


def kept_in_add(text: str) -> Case:
    made = growing(text)
    place = Place(file=FILE, line=5, function="add")
    stays = (
        StaysBehind(block_bytes=4 * MIB, blocks=2.0, ops=("aten::empty",), place=place),
        StaysBehind(block_bytes=512, blocks=2.0, ops=("aten::resize_",)),
    )
    assert made.traced_memory is not None
    return replace(made, traced_memory=replace(made.traced_memory, stays=stays))


def test_the_line_is_the_one_that_makes_what_it_keeps_where_the_function_allocates_it() -> None:
    """An argument that is only put away was allocated by the caller."""
    (finding,) = look(kept_in_add(BUFFER))
    assert (finding.line, finding.confidence) == (8, "medium")
    assert "`self.seen` keeps 8 MiB" in finding.claim
    assert finding.evidence[0].what == "growth"
    assert any(e.text.startswith("self.seen.append(x.repeat(1, 8)):") for e in finding.evidence)


def test_of_several_such_lines_all_are_named() -> None:
    (finding,) = look(kept_in_add(BUFFER + "        self.more.append(x * 2)\n"))
    assert "add() keeps 8 MiB" in finding.claim
    assert "line 9 (`self.more`)" in finding.doubt
    assert [e.text[:6] for e in finding.evidence if e.what == "source"] == ["line 8", "line 9"]


def test_what_such_a_line_keeps_may_be_let_go_elsewhere() -> None:
    emptied = BUFFER + "\n    def end(self):\n        self.seen.clear()\n"
    (finding,) = look(kept_in_add(emptied))
    assert "self.seen" not in finding.claim


def test_kept_graphs_are_the_other_rules() -> None:
    assert not list(look(growing(KEEPS_GRAPH, unrun=9.0)))


def test_silent_without_growth() -> None:
    assert not list(look(case(KEEPS_TENSOR)))


def test_a_container_that_is_emptied_is_no_reason() -> None:
    bounded = KEEPS_TENSOR.replace("history = []", "history = deque(maxlen=4)")
    (finding,) = look(growing(bounded))
    assert finding.line is None


def test_a_resident_size_alone_must_grow_by_a_tenth() -> None:
    made = case(KEEPS_NONE, gpu=False)
    assert made.traced_memory is not None
    for each, said in ((8 * MIB, 1), (MIB, 0)):
        memory = MemoryUse(
            host_peak_bytes=GIB, growth_bytes_per_step=float(each),
            host_growth_bytes_per_step=float(each),
        )  # fmt: skip
        found = list(look(replace(made, memory=memory)))
        assert len(found) == said
        assert all(f.confidence == "low" and "resident size" in f.doubt for f in found)


def test_a_hosts_leak_beside_a_steady_device_is_seen() -> None:
    made = case(KEEPS_NONE)
    memory = replace(made.memory, host_growth_bytes_per_step=8.0 * MIB)
    (finding,) = look(replace(made, memory=memory))
    assert "the host's memory" in finding.claim


def test_traced_steps_of_a_host_alone_need_a_line() -> None:
    """Frees of blocks older than the trace are not in it: four batches kept look like a leak."""
    made = replace(growing(KEEPS_NONE, gpu=False), memory=MemoryUse(host_peak_bytes=GIB))
    assert not list(look(made))
    made = replace(growing(KEEPS_TENSOR, gpu=False), memory=MemoryUse(host_peak_bytes=GIB))
    assert [finding.line for finding in look(made)] == [9]


def test_a_hosts_resident_size_must_say_as_much_as_its_traced_steps() -> None:
    made = growing(KEEPS_TENSOR, gpu=False)
    for each, said in ((7 * MIB, 1), (MIB, 0)):
        memory = MemoryUse(
            host_peak_bytes=GIB, growth_bytes_per_step=float(each),
            host_growth_bytes_per_step=float(each),
        )  # fmt: skip
        assert len(list(look(replace(made, memory=memory)))) == said


def decoding(text: str = KEEPS_NONE, work: int = 8 * MIB, **changed: Any) -> Case:
    """Tokens of a generation: each leaves 8 MiB, and allocates `work` more than the one before."""
    made = growing(text)
    assert made.capture is not None
    assert made.traced_memory is not None
    return replace(
        made,
        capture=replace(made.capture, stepping="call", optimizers=()),
        memory=replace(made.memory, **changed),
        traced_memory=replace(
            made.traced_memory, backwards=False,
            step_allocated_bytes=(64 * MIB, 64 * MIB + work, 64 * MIB + 2 * work),
        ),
    )  # fmt: skip


def test_a_key_value_cache_is_no_leak() -> None:
    """Each token is computed from all that is kept: its work grows with it."""
    assert not list(look(decoding()))


def test_a_cache_that_is_alive_twice_at_the_end_of_a_step_is_no_leak() -> None:
    """`logits, past = model(token, past)`: the old cache and its longer copy are both alive when
    the call returns, so memory grows twice as fast as the work."""
    assert not list(look(decoding(work=4 * MIB - 64)))
    assert list(look(decoding(KEEPS_TENSOR, work=MIB)))


COLLECTS = """\
import torch

def predict(model, loader):
    outputs = []
    for x in loader:
        outputs.append(model(x))
    return torch.cat(outputs)
"""


def test_outputs_that_a_function_collects_and_joins_are_no_leak() -> None:
    """The joined outputs are as large as the parts, so memory does not fall when the function
    returns."""
    made = decoding(COLLECTS, work=0)
    place = Place(file=FILE, line=3, function="predict")
    stays = (StaysBehind(block_bytes=8 * MIB, blocks=1.0, ops=("aten::addmm",), place=place),)
    assert made.traced_memory is not None
    traced = replace(made.traced_memory, stays=stays)
    assert growth(replace(made, traced_memory=traced)) is None
    for_good = COLLECTS.replace("    outputs = []\n", "").replace("outputs.append", "seen.append")
    kept = decoding("seen = []\n" + for_good.replace("cat(outputs)", "ones(2)"), work=0)
    assert growth(replace(kept, traced_memory=traced)) is not None


def test_results_that_inference_keeps_for_good_are_a_leak() -> None:
    (finding,) = look(decoding(KEEPS_TENSOR, work=0))
    assert finding.rule == "memory-leak"


def test_memory_of_inference_given_back_before_the_end_is_no_leak() -> None:
    assert not list(look(decoding(work=0, growth_released=True)))


def test_memory_that_training_gives_back_at_its_end_is_still_a_leak() -> None:
    made = growing(KEEPS_TENSOR)
    assert list(look(replace(made, memory=replace(made.memory, growth_released=True))))


def test_sequences_that_get_longer_are_no_leak() -> None:
    """The batch and the outputs of the last step are still there, and larger each time."""
    made = growing(KEEPS_NONE)
    assert made.traced_memory is not None
    longer = replace(
        made.traced_memory, step_allocated_bytes=(64 * MIB, 80 * MIB, 96 * MIB),
        forward_bytes=4.0 * GIB,
    )  # fmt: skip
    assert not list(look(replace(made, traced_memory=longer)))


def test_the_finding_says_that_the_program_ran_out_of_memory() -> None:
    made = growing(KEEPS_TENSOR)
    assert made.capture is not None
    full = OutOfMemory(asked_bytes=1, free_bytes=0, total_bytes=GIB)
    (finding,) = look(replace(made, capture=replace(made.capture, out_of_memory=full)))
    assert finding.doubt == ""
    (before,) = look(made)
    assert finding.claim != before.claim


CACHING = """\
class Cached(Dataset):
    def __init__(self):
        self.cache = {}

    def __getitem__(self, index):
        if index not in self.cache:
            self.cache[index] = load(index).float()
        return self.cache[index]
"""


def test_a_data_set_that_keeps_its_samples_is_not_named() -> None:
    (finding,) = look(growing(CACHING))
    assert finding.line is None
