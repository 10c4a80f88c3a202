"""Whether a loader's samples are made by code that draws random numbers: moved into workers, or to
other workers, it draws others, and equal data cannot be asked for.

Seen by the state of the three global generators (torch, random, numpy) before and after a batch is
fetched, in the main process and in forked workers. A worker that was not forked has no hooks of
ours: then what the unchanged program drew in its own process is all that is known.
"""

import functools
import importlib
import inspect
import math
import mmap
import os
import random
import sys
from typing import Any

LOOKS = 8
"""Batches a process that are looked at, as many as the steps that are watched and not timed."""


def generators(torch: Any) -> tuple[Any, ...]:
    """The states of those that a model's layers draw from; none while a graph is captured."""
    if not torch.cuda.is_initialized():
        return (torch.get_rng_state(),)
    if torch.cuda.is_current_stream_capturing():
        return ()
    return torch.get_rng_state(), torch.cuda.get_rng_state()


class Drawing:
    """One for the trial, put on before the program makes its loaders."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pid = os.getpid()
        self._looks: dict[int, int] = {}
        self._said = mmap.mmap(-1, 2)
        """Shared with what is forked: drew in the main process, drew in a worker."""

    @property
    def in_main(self) -> bool:
        return self._said[0] == 1

    @property
    def in_workers(self) -> bool:
        return self._said[1] == 1

    def put_on(self) -> None:
        fetch = importlib.import_module("torch.utils.data._utils.fetch")
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            kind.fetch = self._around(kind.fetch)

    def _around(self, theirs: Any) -> Any:
        @functools.wraps(theirs)
        def fetch(fetcher: Any, index: Any) -> Any:
            pid = os.getpid()
            looks = self._looks.get(pid, 0)
            if looks >= LOOKS:
                return theirs(fetcher, index)
            self._looks[pid] = looks + 1
            before = self._states()
            try:
                return theirs(fetcher, index)
            finally:
                self._compare(before, pid)

        return fetch

    def _compare(self, before: tuple[Any, ...], pid: int) -> None:
        if before != self._states():
            self._said[0 if pid == self._pid else 1] = 1

    def _states(self) -> tuple[Any, ...]:
        numpy = sys.modules.get("numpy")
        drawn = numpy.random.get_state() if numpy is not None else None
        return (
            self._torch.get_rng_state().numpy().tobytes(),
            random.getstate(),
            None if drawn is None else (drawn[1].tobytes(), *drawn[2:]),
        )


FUNCTIONS = (
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
)  # fmt: skip
ATTENTION = "scaled_dot_product_attention"
RECURRENT = ("LSTM", "GRU", "RNN")


class Undropped:
    """One for the trial, put on before the program imports functions by their names."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.asked = 0
        """Elements, as many as it would drop on average."""

    def put_on(self) -> None:
        functional = self._torch.nn.functional
        for name in FUNCTIONS:
            setattr(functional, name, self._nothing(getattr(functional, name)))
        setattr(functional, ATTENTION, self._attention(getattr(functional, ATTENTION)))
        for name in RECURRENT:
            kind = getattr(self._torch.nn, name)
            kind.forward = self._between_layers(kind.forward)

    def _nothing(self, theirs: Any) -> Any:
        trains = inspect.signature(theirs).parameters["training"].default

        @functools.wraps(theirs)
        def dropout(
            input: Any, p: float = 0.5, training: bool = trains, inplace: bool = False
        ) -> Any:
            if training and not self._torch.compiler.is_compiling():
                self._count(p, input.numel())
            # What is done in place to what was dropped leaves the input alone.
            return input.clone() if training and p and not inplace else input

        return dropout

    def _attention(self, theirs: Any) -> Any:
        @functools.wraps(theirs)
        def attention(
            query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
            *rest: Any, **named: Any,
        ) -> Any:  # fmt: skip
            if dropout_p and not self._torch.compiler.is_compiling():
                self._count(dropout_p, math.prod(query.shape[:-1]) * key.shape[-2])
            return theirs(query, key, value, attn_mask, 0.0, *rest, **named)

        return attention

    def _count(self, p: float, elements: int) -> None:
        if self._torch._C._current_graph_task_id() == -1:  # not what a backward computes again
            self.asked += round(p * elements)

    def _between_layers(self, theirs: Any) -> Any:
        @functools.wraps(theirs)
        def forward(module: Any, *args: Any, **named: Any) -> Any:
            was, module.dropout = module.dropout, 0.0
            try:
                returned = theirs(module, *args, **named)
            finally:
                module.dropout = was
            if was and module.training:
                last = getattr(returned[0], "data", returned[0])  # of a packed sequence
                self._count(was, (module.num_layers - 1) * last.numel())
            return returned

        return forward
