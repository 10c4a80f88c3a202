"""Memory that grows because a line keeps graphs."""

from msgspec.structs import replace

from ridgeline.diagnosis.rules.kept_graphs import graph_kept as look
from ridgeline.diagnosis.rules.kept_graphs import memory_leak
from ridgeline.records.run_summary import MemoryUse
from ridgeline.records.step_work import StaysBehind
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


def test_growth_and_the_line_that_keeps_graphs_agree() -> None:
    (finding,) = look(growing(KEEPS_GRAPH, unrun=9.0))
    assert finding.rule == "graph-kept"
    assert (finding.file, finding.line, finding.function) == (FILE, 9, "main")
    assert "`history`" in finding.claim
    assert "8 MiB" in finding.claim
    assert finding.confidence == "high"
    assert finding.share_pct == 0
    assert finding.memory_pct == 100
    assert finding.change == "history.append(held.detach())"


def test_says_when_the_device_will_be_full() -> None:
    (finding,) = look(growing(KEEPS_GRAPH, each=130 * MIB, unrun=9.0))
    assert "the device's memory is full after 1.02 k steps (1 min 42 s)" in finding.claim


def test_sums_and_keys_keep_graphs_too() -> None:
    for line in (
        "total += held",
        "total = total + held",
        "seen[x] = held",
        "self.all.append(held)",
    ):
        (finding,) = look(growing(KEEPS_GRAPH.replace("history.append(held)", line), unrun=9.0))
        assert finding.line == 9, line


def test_without_a_source_nodes_that_never_run_tell() -> None:
    (finding,) = look(growing("", unrun=9.0))
    assert finding.file == ""
    assert finding.confidence == "medium"
    assert "Something keeps" in finding.claim


def test_silent_where_memory_does_not_grow_and_nothing_is_kept() -> None:
    assert not list(look(case(KEEPS_NONE)))
    assert not list(look(case(KEEPS_TENSOR)))


def test_nodes_alone_fill_the_host_in_the_end() -> None:
    """90 nodes of 600 bytes: nothing in forty steps, 5 GB in a hundred thousand."""
    (finding,) = look(case(KEEPS_GRAPH.replace("append(held)", "append(loss)")))
    assert finding.line == 9
    assert finding.confidence == "medium"
    assert "90 nodes, about 52.7 KiB" in finding.claim
    assert 7 < finding.memory_pct < 9
    made = case(KEEPS_GRAPH)
    assert made.traced_memory is not None
    few = replace(made.traced_memory, nodes=4.0)
    assert not list(look(replace(made, traced_memory=few)))


def test_nodes_that_the_resident_size_would_show_and_does_not_are_not_kept() -> None:
    made = case(KEEPS_GRAPH)
    assert made.traced_memory is not None
    many = replace(made.traced_memory, nodes=2000.0)
    flat = replace(made.memory, host_growth_bytes_per_step=0.0)
    assert not list(look(replace(made, traced_memory=many, memory=flat)))


def test_silent_where_the_run_as_a_whole_does_not_grow() -> None:
    """Three traced steps may be those in which a buffer fills."""
    grown = growing(KEEPS_NONE, unrun=9.0)
    assert not list(look(replace(grown, memory=replace(grown.memory, growth_bytes_per_step=0.0))))


def test_silent_where_growth_would_fill_nothing_in_a_long_training() -> None:
    assert not list(look(growing(KEEPS_NONE, each=512, unrun=9.0)))


def test_growth_that_keeps_no_graph_is_another_rules() -> None:
    assert not list(look(growing(KEEPS_NONE)))
    assert not list(look(growing(KEEPS_TENSOR, unrun=9.0)))


def test_a_loss_whose_backward_has_run_holds_no_megabytes() -> None:
    """`losses.append(loss)` keeps a scalar and empty nodes: it is not what 8 MiB a step are."""
    text = KEEPS_GRAPH.replace("append(held)", "append(loss)")
    assert not list(look(growing(text)))
    retained = text.replace("loss.backward()", "loss.backward(retain_graph=True)")
    assert [f.line for f in look(growing(retained))] == [9]


def test_a_tensor_kept_after_its_backward_takes_its_own_memory_only() -> None:
    """`outputs.append(out)` behind the backward: the graph is freed, so detaching saves nothing."""
    text = KEEPS_GRAPH.replace("held = F.mse_loss(model(x), y)", "held = model(x)")
    kept = growing(text.replace("F.mse_loss(model(x), y)", "F.mse_loss(held, y)"))
    assert not list(look(kept))
    (finding,) = memory_leak(kept)
    assert finding.line == 9
    assert "detach" not in finding.change


def test_one_block_a_step_is_the_kept_tensor_and_not_its_graph() -> None:
    """`history.append(torch.cat([held, held]).clone())`: no backward runs its two nodes, which hold
    nothing."""
    made = growing(KEEPS_GRAPH, unrun=2.0)
    assert made.traced_memory is not None
    block = StaysBehind(block_bytes=8 * MIB, blocks=1.0, ops=("aten::cat",))
    alone = replace(made.traced_memory, stays=(block,))
    assert not list(look(replace(made, traced_memory=alone)))
    assert [f.line for f in memory_leak(replace(made, traced_memory=alone))] == [9]
    for more in ((replace(block, blocks=2.0),), (block, replace(block, block_bytes=4))):
        graph = replace(made.traced_memory, stays=more)
        assert list(look(replace(made, traced_memory=graph)))


def test_on_a_host_the_traced_steps_and_the_resident_size_speak() -> None:
    made = growing(KEEPS_GRAPH, gpu=False, unrun=9.0)
    (finding,) = look(replace(made, memory=MemoryUse(host_peak_bytes=GIB)))
    assert "the host's memory is full" in finding.claim
    assert finding.confidence == "high"


def test_a_trace_alone_is_enough() -> None:
    made = growing("", unrun=3.0)
    made = replace(made, kind="trace", capture=None, run=None, steps=(), memory=MemoryUse())
    (finding,) = look(made)
    assert "without end" in finding.claim
    assert finding.memory_pct == 100


def test_the_change_takes_what_is_added_off_its_graph_not_the_sum() -> None:
    """The sum's name ends with the value's."""
    for line, said in {
        "total_held += held": "total_held += held.detach()",
        "total_held = total_held + held  # é": "total_held = total_held + held.detach()",
        "history.append(held * 2)": "history.append((held * 2).detach())",
        "history.append((x, held))": "history.append((x, held.detach()))",
        "history.append({'held': held})": "history.append({'held': held.detach()})",
    }.items():
        (finding,) = look(growing(KEEPS_GRAPH.replace("history.append(held)", line), unrun=9.0))
        assert finding.change == said


def test_the_change_names_the_call_of_a_part_of_the_model() -> None:
    text = KEEPS_GRAPH.replace("append(held)", "append(model[0](x))")
    (finding,) = look(growing(text, unrun=9.0))
    assert (finding.line, finding.change) == (9, "history.append(model[0](x).detach())")


def test_without_a_known_line_the_change_is_a_general_one() -> None:
    (finding,) = look(growing(KEEPS_NONE, unrun=9.0))
    assert finding.line is None
    assert finding.change.startswith("#")
