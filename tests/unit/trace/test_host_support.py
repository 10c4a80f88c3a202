"""Types this machine's CPU has to emulate, by its instruction flags."""

import pytest

from ridgeline.trace import ceilings


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"avx2", "avx512f"}, ("bfloat16", "float16")),
        ({"avx512f", "avx512_bf16"}, ("float16",)),
        ({"amx_bf16", "avx512_fp16"}, ()),
        (set(), ()),  # not told: nothing is said
    ],
)
def test_what_has_no_instructions_is_emulated(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], expected: tuple[str, ...]
) -> None:
    monkeypatch.setattr(ceilings.processor, "flags", lambda: frozenset(flags))
    assert ceilings.emulated_here() == expected
