import gc
from typing import Any

import torch
from torch import nn

from ridgeline.fixes.program import Program


def noting(seen: list[Any]) -> Any:
    def put_on(model: Any) -> str:
        seen.append(model)
        return "done"

    return put_on


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
    assert [one.what for one in program.outcome()[0]] == ["done"]
