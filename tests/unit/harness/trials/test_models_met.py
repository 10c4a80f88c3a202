import gc
from typing import Any

import torch
from torch import nn

from ridgeline.fixes.program import Program
from ridgeline.records.facts import Reason, because
from ridgeline.records.reason_codes import Done

DONE = because(Done.INFERENCE_MODE, model="Linear")


def noting(seen: list[Any]) -> Any:
    def note(model: Any) -> Reason:
        seen.append(model)
        return DONE

    return note


def test_a_model_is_changed_once_and_a_new_one_with_its_id_as_well() -> None:
    program = Program(torch)
    seen: list[Any] = []
    program.on_model("some", noting(seen))
    first = nn.Linear(2, 2)
    for _ in range(3):
        program.call_begins(first, (), {})
    assert len(seen) == 1
    was = id(first)
    del first
    seen.clear()
    gc.collect()
    program._met[id(second := nn.Linear(2, 2))] = program._met.pop(was)  # as if it had its id
    program.call_begins(second, (), {})
    assert len(seen) == 1
    (applied,), _ = program.outcome()
    assert [target.done for target in applied.targets] == [DONE, DONE]  # at two lines
