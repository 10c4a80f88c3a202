"""The end of a trial: writes its record, and ends the program when its last step ends.

Nothing of the program runs after that. A checkpoint in a `finally`, a handler of all exceptions, or
a thread that never ends would turn the end of a trial into a result, or let it hang.
"""

import contextlib
import resource
from typing import Any

import msgspec

from ridgeline.harness.capture.program_exit import LastWords
from ridgeline.harness.trials.process_memory import others_bytes, own_peak_bytes
from ridgeline.harness.trials.session import TrialSession
from ridgeline.records.facts import because
from ridgeline.records.reason_codes import Skip
from ridgeline.records.trial import Trial

RESULT = "trial.msgpack"
"""Not JSON, which has no nan: a loss that broke would come back as one that was not seen."""


class Ending:
    def __init__(self, session: TrialSession, rank: int = 0, world: int = 1) -> None:
        self._session = session
        self._rank = rank
        self._world = world
        self._written = False

    def install(self) -> None:
        session = self._session
        words = LastWords(self.write, lambda: session.farewell("finished", ""), world=self._world)
        words.install()
        session.over = words.at_once

    def write(self) -> None:
        if self._written or self._rank:
            return
        self._written = True
        self._session.gate.closed = True
        with contextlib.suppress(Exception):
            self._session.meter.close()
        data = msgspec.msgpack.encode(self._trial())
        home = self._session.directory
        temporary = home / f".{RESULT}"
        temporary.write_bytes(data)
        temporary.replace(home / RESULT)

    def _unmoved(self) -> tuple[str, ...]:
        watch = self._session.watch
        try:
            with self._session.program.torch.no_grad():
                return watch.later.unmoved(self._session.progress.index)
        except Exception as error:
            watch.problems.append(f"{type(error).__name__}: {error}"[:200])
            return ()

    def _trial(self) -> Trial:
        session, plan = self._session, self._session.plan
        watch = session.watch
        try:
            watch.finish()
        except Exception as error:
            watch.problems.append(f"{type(error).__name__}: {error}"[:200])
        if session.progress.compiling.seen:
            session.program.no_model(because(Skip.COMPILED_CALLER))
        applied, left = session.program.outcome()
        torch = session.program.torch
        cuda = torch.cuda.is_initialized()
        peak = torch.cuda.max_memory_allocated() if cuda else own_peak_bytes()
        peak = max(peak, watch.peak_bytes)
        return Trial(
            fixes=tuple(asked.fix for asked in plan.fixes),
            applied=applied,
            not_applied=left,
            watched=tuple(watch.steps),
            looked=watch.later.looked,
            stood=self._unmoved(),
            handed=watch.later.handed if watch.later.counted else {},
            queued=watch.later.queued,
            evaluation=watch.evaluation,
            tensors=watch.tensors,
            early=watch.early,
            gradients=tuple(watch.gradients.values()),
            outputs=watch.reference.outputs,
            float64_error=watch.reference.error,
            no_reference=watch.reference.missing,
            peak_bytes=peak if cuda else 0,
            own_peak_bytes=0 if cuda else peak,
            others_bytes=0 if cuda else others_bytes(),
            device="cuda" if cuda else "cpu",
            draws=watch.draws is not False,
            undropped=None if session.progress.compiling.seen else watch.undropped,
            workers_draw=session.loader_draws.in_workers,
            jitter=plan.jitter,
            settings=tuple(watch.settings),
            queue=session.queue.noted,
            energy_j=session.meter.joules,
            ended=_why_no_step(session.progress.index),
            problems=tuple(dict.fromkeys(watch.problems)),
        )


def _why_no_step(steps: int) -> str:
    """Return why no step was seen, if the work was done in other processes; else ""."""
    if steps:
        return ""
    own, others = map(_processor_s, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    if others > max(own, 1.0):
        return "no step was seen: the program trains in processes that it starts itself"
    return ""


def _processor_s(who: Any) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime
