"""What one small operation costs: seconds each, issued back to back from Python.

A program whose operations are shorter than this is limited by launching them, however fast the
device is.
"""

import torch

from ridgeline.machine.stopwatch import best_seconds, wall_timer_for


def launch_seconds(device: torch.device, budget_s: float) -> float:
    one = torch.rand(1, generator=torch.Generator(device=device).manual_seed(0), device=device)
    with torch.no_grad():
        # In place and without arguments: nothing to allocate, nothing to parse.
        return best_seconds(one.neg_, wall_timer_for(device), budget_s=budget_s, blocks=8)
