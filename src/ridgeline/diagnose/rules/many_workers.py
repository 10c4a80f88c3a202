"""many-workers: workers, or their threads, take each other's processors."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rule import Rule, found
from ridgeline.diagnose.rules._input import feeding, wait_evidence, who
from ridgeline.diagnose.rules._input_causes import cores_of, crowded, in_use, worker_threads
from ridgeline.diagnose.rules._input_places import made_at, taken_at
from ridgeline.diagnose.rules._threads_set import threads_set
from ridgeline.records.finding import Evidence, Finding

RULE = Rule(
    id="many-workers",
    family="input",
    title="More workers, or threads of theirs, than processors",
    budget="input",
    needs=("capture", "timed", "telemetry"),
    looks_at="The wait for batches in untraced steps, the number of workers and the threads each "
    "has, the processors there are and how much of them is in use.",
    threshold="An exposed wait from 5 % of the step on (10 % on a CPU) while nine tenths of the "
    "processors are in use and workers × threads is more than one and a half times their number.",
    why="A processor runs one thread at a time. Beyond that threads wait for each other: those of "
    "a parallel operator meet at its end, so each waits for the slowest, which waits for a "
    "processor. Sixteen workers with sixteen threads each spend most of their time so. And they "
    "take the processor from the process that trains.",
    fix="One thread a worker (the DataLoader sets torch's to 1 by itself: leave it; for OpenCV "
    "`cv2.setNumThreads(0)`, for NumPy `OMP_NUM_THREADS=1`), and not more workers than processors "
    "less one for the process that trains.",
    wrong_when="Workers wait for storage most of the time: then more of them than processors are "
    "right. Or other programs hold the processors.",
)


def look(case: Case) -> Iterator[Finding]:
    fed = feeding(case)
    if fed is None or not fed.workers or not crowded(case, fed):
        return
    cores, threads = cores_of(case), worker_threads(case)
    used = in_use(case) or 0.0
    call = made_at(case, fed.loader)
    place = call.place if call is not None else taken_at(fed.loader)
    change = (call.with_options(num_workers=str(max(cores - 1, 1))) if call else "") or (
        f"loader = DataLoader(dataset, batch_size, num_workers={max(cores - 1, 1)})"
    )
    if threads > 1:
        at = threads_set(case)
        place = at.place if at is not None else place
        change = at.change if at is not None else "torch.set_num_threads(1)  # in worker_init_fn"
    each = f" × {threads} threads" if threads > 1 else ""
    yield found(
        RULE,
        claim=f"{who(case)} waits {units.percent(fed.share)} of each step while "
        f"{units.plural(fed.workers, 'worker')}{each} share {units.plural(cores, 'processor')}",
        share=fed.share,
        evidence=[
            wait_evidence(case, fed),
            Evidence(
                what="threads at work",
                text=f"{units.plural(fed.workers, 'worker')} × {threads} on {cores} processors",
                value=fed.workers * threads,
            ),
            Evidence(what="processors in use", text=f"{used:.1f} of {cores}", value=used),
        ],
        place=place,
        change=change,
        # without pools fewer workers would mend little: what they do has to become cheaper
        confidence="low" if threads == 1 else "medium" if case.telemetered.crowded else "high",
        doubt="other programs took a good part of the processors"
        if case.telemetered.crowded
        else "",
    )
