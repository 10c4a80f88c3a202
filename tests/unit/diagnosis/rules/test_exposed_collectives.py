import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules.communication import exposed
from ridgeline.diagnosis.rules.communication import exposed_collectives as look
from ridgeline.diagnosis.rules.communication import late_rank as late
from ridgeline.records.facts import Trust
from ridgeline.records.run import Phase, RunFile, Target
from ridgeline.records.sites import SitePhase
from tests.unit.diagnosis.made_up_verdict import times
from tests.unit.diagnosis.rules.made_up_machine import only
from tests.unit.diagnosis.rules.made_up_ranks import MIB, case, ranks, site

SOURCE = """def scored(outputs):
    parts = [torch.empty_like(outputs) for _ in range(2)]
    dist.all_gather(parts, outputs)
    return parts


def main():
    model = DistributedDataParallel(net)
"""


def test_a_collective_the_program_waits_for_at_once() -> None:
    held = site(25, size=16 * MIB, name="all_gather", phase="other", function="scored")
    found = only(look(case(held, source=SOURCE)))
    assert "The step waits 25 ms in all_gather for 16 MiB" in found.claim
    assert found.place == "train.py:3"
    assert found.share_pct == pytest.approx(25)
    assert found.confidence == "high"
    assert "dist.all_gather(parts, outputs, async_op=True)" in found.change


def test_gradients_that_no_backward_hides() -> None:
    held = site(30, size=100 * MIB, exposed=20)
    found = only(look(case(held, source=SOURCE, across=ranks([0, 0], waits=(0, 0)))))
    assert found.place == "train.py:8"
    assert found.share_pct == pytest.approx(20)
    assert found.confidence == "medium"
    assert "gradient_as_bucket_view=True" in found.change


OWN_NAME = SOURCE.replace("model = DistributedDataParallel(net)", "wrapped = DDP(net)")


def test_the_hook_that_halves_the_bytes_is_nccls_alone() -> None:
    held = site(30, size=100 * MIB)
    told = ranks([0, 0], waits=(0, 0))
    first, second, third = only(look(case(held, source=OWN_NAME, across=told))).change.splitlines()
    assert first == "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks"
    assert second == "wrapped = DDP(net, gradient_as_bucket_view=True)"
    assert third.startswith("wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)")
    for made in (
        case(held, source=OWN_NAME, across=told, gpu=False),
        case(held, source=f"{OWN_NAME}    dist.init_process_group('gloo')\n", across=told),
    ):
        change = only(look(made)).change
        assert "hook" not in change
        assert change.startswith("wrapped = DDP(net, gradient_as_bucket_view=True, bucket_cap_mb=")
        assert "wrapped.no_sync()" in change


def test_a_wrapper_that_is_no_variables_value_is_called_something() -> None:
    source = SOURCE.replace("model = Dist", "return Dist")
    held = site(30, size=100 * MIB)
    change = only(look(case(held, source=source, across=ranks([0, 0], waits=(0, 0))))).change
    assert "ddp_model.register_comm_hook(" in change


def test_what_the_rank_waited_for_others_is_not_sending() -> None:
    held = site(30, size=100 * MIB)
    found = only(look(case(held, across=ranks([0, 0], waits=(30, 0)))))
    assert found.share_pct == pytest.approx(15)
    doubtful = ranks([0, 0], trust=Trust(confidence="unreliable", why="clocks"))
    assert only(look(case(held, across=doubtful))).confidence == "low"


def test_from_one_trace_the_shortest_call_tells_what_sending_takes() -> None:
    held = site(30, calls=2, size=100 * MIB, least=5)
    found = only(look(case(held, run=False)))
    assert found.share_pct == pytest.approx(10)
    assert "late rank" in found.doubt


def test_the_fix_is_of_the_collective_that_was_seen() -> None:
    held = site(25, size=25 * MIB, name="all_to_all", phase="forward", function="")
    found = only(look(case(held, run=False)))
    assert "in all_to_all" in found.claim
    assert found.change.startswith("work = dist.all_to_all_single(received, sent, async_op=True)")
    gradients = only(look(case(site(25, size=25 * MIB, function=""), run=False)))
    assert "DistributedDataParallel" in gradients.change
    barrier = site(25, size=None, name="barrier", phase="other", function="")
    assert "leave out" in only(look(case(barrier, run=False))).change


def test_one_collective_is_told_by_one_rule() -> None:
    """5 calls of 8 KiB in 3.5 ms: another rank is late, and late-rank says so."""
    waits = site(20, calls=5, size=8192, name="all_to_all", phase="forward", function="")
    sends = site(20, size=20 * MIB, phase="forward", function="")
    for made in (case(waits, run=False), case(waits, sends, run=False)):
        said = [*look(made), *late(made)]
        assert len([f for f in said if "all_to_all" in f.claim]) == 0
        assert len([f for f in said if f.rule == "late-rank"]) == 1
    assert only(late(case(waits, sends, run=False))).share_pct == pytest.approx(19.5, abs=0.1)
    assert only(look(case(waits, sends, run=False))).share_pct == pytest.approx(20, abs=0.1)
    assert not [*late(case(sends, run=False))]


def test_the_claim_says_how_much_of_it_is_waiting() -> None:
    held = site(30, size=100 * MIB)
    found = only(look(case(held, across=ranks([0, 0], waits=(30, 0)))))
    assert found.claim.endswith("; 50 % of that is waiting for other ranks")
    whole = only(look(case(held, across=ranks([0, 0], waits=(0, 0)))))
    assert whole.claim.endswith("nothing is computed meanwhile")


def test_a_few_bytes_that_take_long_are_waiting() -> None:
    assert not [*look(case(site(30, size=64 * 1024)))]


def test_on_a_cpu_the_exchange_takes_cores_too() -> None:
    held = site(25, size=16 * MIB, name="all_gather", phase="other", function="scored", exposed=10)
    found = only(look(case(held, source=SOURCE, gpu=False)))
    assert found.share_pct == pytest.approx(25)
    beside = next(one for one in found.evidence if one.what == "beside compute")
    assert beside.value == pytest.approx(0.015)


@pytest.mark.parametrize("shown", [0.0, 2.0])
def test_silent_where_compute_hides_it(shown: float) -> None:
    assert not [*look(case(site(30, size=100 * MIB, exposed=shown)))]


def test_many_small_ones_are_another_rules() -> None:
    held = site(20, calls=100, size=4096, phase="forward", function="scored")
    assert not [*look(case(held, source=SOURCE))]


def slowed(made: Case, ms: float) -> Case:
    """Of untraced steps of `ms`: tracing made 100 of them."""
    phases: dict[Phase, float] = {"forward": 0.15, "backward": 0.8, "optimizer": 0.05}
    return replace(made, times=times(phases, gpu=False, ms=ms))


def test_on_a_cpu_ranks_do_not_wait_longer_than_untraced_phases_leave() -> None:
    """40 ms of a traced step of 100; 40 ms untraced. Of those the model needs half."""
    made = slowed(case(site(40, size=400 * MIB), gpu=False), 40)
    assert exposed(made, *made.exchange.sites) == pytest.approx(0.5)
    found = only(look(made))
    assert found.share_pct == pytest.approx(25)  # half the bytes are left
    assert "The step waits 20 ms" in found.claim
    assert any("40 ms a traced step" in one.text for one in found.evidence)
    more = slowed(case(site(70, size=400 * MIB), gpu=False), 40)
    assert exposed(more, *more.exchange.sites) == pytest.approx(0.7)  # as traced
    part = slowed(case(site(30, size=400 * MIB), site(10, size=4 * MIB), gpu=False), 40)
    assert exposed(part, part.exchange.sites[1]) == pytest.approx(0.125)


def test_gradients_of_a_tuned_cpu_job_are_below_5_percent() -> None:
    """4 MB in two buckets take 27 ms, a sixth of it for their bytes."""
    held = site(13.4, size=3_254_412), site(14.0, size=723_600)
    made = slowed(case(*held, gpu=False, across=ranks([0, 0], waits=(150, 0))), 65)
    assert all(found.share_pct < 5 for found in look(made))


SHARDED = """def build(blocks, mesh):
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(blocks)
    return DistributedDataParallel(blocks) if REPLICATE else blocks
"""


@pytest.mark.parametrize(
    ("name", "phase", "named"),
    [
        ("all_gather", "forward", "fully_shard(block, mesh=mesh, reshard_after_forward=False)"),
        ("all_reduce", "backward", "fewer, larger modules"),
        ("reduce_scatter", "backward", "fewer, larger modules"),
    ],
)
def test_a_sharded_model_is_given_no_advice_for_buckets(
    name: str, phase: SitePhase, named: str
) -> None:
    held = replace(site(30, size=100 * MIB, name=name, phase=phase), sharding="fsdp2")
    made = replace(case(held, source=SHARDED, gpu=False, across=ranks([0, 0])), capture=None)
    made = replace(made, run=RunFile(name="run", target=Target(kind="script", name="train.py")))
    found = only(look(made))
    assert named in found.change
    assert found.place == "train.py:3"  # the call for each block, not the one for the whole
    for word in ("bucket", "DistributedDataParallel", "no_sync", "dist.", "hook"):
        assert word not in found.change


def test_the_line_of_a_wrapper_that_was_not_seen_at_work_is_not_named() -> None:
    held = site(30, size=100 * MIB, function="main", line=7)
    made = case(held, source=SOURCE, across=ranks([0, 0]))
    assert only(look(made)).line == 8
    assert only(look(replace(made, capture=None))).line == 7


def test_a_call_that_may_not_run_is_not_named_among_several_in_a_function() -> None:
    source = (
        "def scored(x):\n    if SLOW:\n        dist.all_gather(parts, x)\n"
        "    else:\n        dist.all_gather(others, x)\n"
    )
    held = site(25, size=16 * MIB, name="all_gather", phase="other", function="scored")
    assert only(look(case(held, source=source, across=ranks([0, 0])))).line == 1


def test_no_line_is_named_where_two_lines_wrap_the_model_alike() -> None:
    text = "if a:\n    m = DDP(m)\nelse:\n    m = DDP(m, [0])\n"
    found = only(look(case(site(20, size=20 * MIB), source=text)))
    assert found.line not in (2, 4)
