"""emulated-bf16: 16-bit products on a device that has no instructions for them."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rules.precision import emulated_bf16 as look
from ridgeline.records.run import Flags
from ridgeline.records.sites import OpSite
from tests.unit.diagnosis.rules.made_up_precision import FILE, SOURCE, case, cpu, gpu, product

CAST = SOURCE.replace(
    "        loss = model(batch)",
    '        with torch.autocast("cpu", dtype=torch.bfloat16):\n            loss = model(batch)',
)
RUN = Flags(autocast=("cpu bfloat16",))


def products(ms: float = 8.0) -> list[OpSite]:
    return [product(ms, dtype="bfloat16", sizes=(512, 512, 512)) for _ in range(10)]


def test_a_processor_that_measured_bfloat16_slower() -> None:
    made = case(*products(), device=cpu(62.5e9, native=False), flags=RUN, source=CAST, step_ms=100)
    [found] = look(made)
    assert "bfloat16 products take 80 % of the step" in found.claim
    assert found.share_pct == pytest.approx(60, abs=0.1)  # a quarter of the float32 rate
    assert (found.file, found.line) == (FILE, 6)
    assert "enabled=False" in found.change
    assert found.confidence == "high"


def test_a_processor_known_to_lack_it_though_nothing_was_measured() -> None:
    made = case(*products(), device=cpu(), flags=RUN, source=CAST, step_ms=100)
    assert not list(look(made))
    [found] = look(replace(made, emulated=("bfloat16", "float16")))
    assert 65 < found.share_pct < 80  # up to the float32 peak
    assert list(look(replace(made, emulated=("bfloat16",), device=None)))


def test_a_model_held_in_bfloat16_is_named_where_it_is_made() -> None:
    text = SOURCE.replace("make()", "make().to(torch.bfloat16)")
    made = case(*products(), device=cpu(62.5e9, native=False), flags=Flags(), source=text,
                step_ms=100)  # fmt: skip
    [found] = look(made)
    assert found.line == 4
    assert found.change == "model = make()  # not bfloat16 on this processor"


@pytest.mark.parametrize("device", [cpu(800e9), cpu(200e9)])
def test_silent_where_the_processor_has_it(device: object) -> None:
    made = case(*products(), device=device, flags=RUN, source=CAST, step_ms=100)
    assert not list(look(made))


def test_silent_in_float32() -> None:
    sites = [product(8.0, sizes=(512, 512, 512)) for _ in range(10)]
    made = case(*sites, device=cpu(62.5e9, native=False), flags=Flags(), step_ms=100)
    assert not list(look(made))


def test_bfloat16_on_a_v100_is_told_float16() -> None:
    volta = gpu("Tesla V100-SXM2-32GB", "sm_70")
    site = product(8.0, "volta_sgemm_128x64_nn", "bfloat16", sizes=(4096, 4096, 2048))
    [found] = look(case(site, device=volta))
    assert "this GPU has no bfloat16 instructions" in found.claim
    assert "float16" in found.change
    assert "bfloat16" not in found.change
    assert found.share_pct > 50
    assert not list(look(case(site)))  # an H200 has it
    half = product(1.0, "volta_h884gemm_128x64_nn", "float16")
    assert not list(look(case(half, device=volta)))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (SOURCE + "\nKIND = torch.bfloat16\nmodel.to(KIND)\n", 9),
        (SOURCE + "\nwith torch.autocast(device, dtype=kind):\n    pass\n", 9),
        (SOURCE, 6),
    ],
)
def test_a_type_kept_in_a_variable_is_found(text: str, line: int) -> None:
    made = case(*products(), device=cpu(62.5e9, native=False), flags=RUN, source=text, step_ms=100)
    [found] = look(made)
    assert found.line == line


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("return make().to(torch.bfloat16)", "return make()  # not bfloat16"),
        ("return make().to('cpu', torch.bfloat16)", "return make().to('cpu', torch.float32)  #"),
        ("model.bfloat16()", "# without model.bfloat16()"),
        ("torch.set_default_dtype(torch.bfloat16)", "torch.set_default_dtype(torch.float32)  #"),
    ],
)
def test_the_change_is_the_whole_line(written: str, said: str) -> None:
    text = SOURCE + f"\ndef get():\n    {written}\n"
    made = case(*products(), device=cpu(62.5e9, native=False), flags=Flags(), source=text,
                step_ms=100)  # fmt: skip
    [found] = look(made)
    assert found.line == 10
    assert found.change.startswith(said)


def test_times_beside_a_share_are_converted_to_the_untraced_step() -> None:
    """Traced steps of 100 ms, untraced ones of 30: 80 % of the step are 24 ms of it, not 80."""
    made = case(*products(), device=cpu(62.5e9, native=False), flags=RUN, source=CAST, step_ms=100)
    assert made.work is not None
    untraced = replace(made, times=replace(made.times, mean_ms=30.0))
    [found] = look(untraced)
    spent = next(one for one in found.evidence if one.what == "bfloat16 products")
    assert untraced.host_share(80e6) == pytest.approx(0.8)
    assert spent.value == pytest.approx(24)
