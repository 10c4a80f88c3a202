"""Samples made in processes of their own, while the step runs."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ridgeline.fixes import dataset
from ridgeline.fixes.fix import Fix
from ridgeline.fixes.fix import bound_of_input as bound
from ridgeline.fixes.program import Made, Program
from ridgeline.machine.processor import usable_cores
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.run import training_loader

MAX_WORKERS = 16
"""Most workers of one loader: each is a process with torch in it, 0.2 to 0.3 GB."""
FEW_CORES = 4
"""On so few cores one worker is tried too: a step that uses them all can spare no more."""

__all__ = ["FIX", "after", "apply", "bound", "brings", "choices", "reason_to_skip"]
FIX = Fix(
    id="loader-workers",
    group="loader",
    title="DataLoader workers",
    alters="nothing",
    slot="workers",
    answers=(
        "loader-starves", "few-workers", "many-workers", "small-files", "repeated-decoding",
        "idle-between-epochs",
    ),
    together=("threads", "persistent-workers"),
    why="The next batches are read, decoded and stacked in other processes while this one trains. "
    "The sampler stays in the main process and draws what it drew before, so the order is the "
    "same.",
    wrong_when="Samples are drawn at random inside the dataset: each worker then has a random "
    "stream of its own. The dataset is changed while it is read, or all cores are busy already.",
    edit_why="batches are made while the step runs",
)  # fmt: skip


def reason_to_skip(ground: Ground) -> Reason | None:
    if not ground.loaders:
        return because(Skip.NO_LOADER)
    fewest = min(one.workers for one in ground.loaders)
    each = _each(ground)
    if _streams(ground) and fewest:
        return because(Skip.STREAM_SHARED_BY_WORKERS)
    if fewest >= min(max(2 * each, 2), MAX_WORKERS) and "many-workers" not in ground.findings:
        return because(Skip.ENOUGH_WORKERS, workers=fewest, cores=each)
    return None


def choices(ground: Ground) -> tuple[dict[str, str], ...]:
    """Return the numbers worth trying, the likeliest first: as many as cores; more, where they wait
    for files; half, where they are in each other's way; one, where the step itself wants the cores.
    Of a loader that has some, only more of them, unless they were found to be too many. Of a stream
    one: see `apply`."""
    each = _each(ground)
    fewest = min((one.workers for one in ground.loaders), default=0)
    numbers = [each, 2 * each, each // 2, *([1] if each <= FEW_CORES else [])]
    if _streams(ground):
        numbers = [1]
    wanted = dict.fromkeys(min(number, MAX_WORKERS) for number in numbers if number)
    fewer = "many-workers" in ground.findings
    has = {one.workers for one in ground.loaders}
    return tuple(
        {"workers": str(one)} for one in wanted if has != {one} and (fewer or one > fewest)
    )


def after(ground: Ground, options: Mapping[str, str]) -> Ground:
    number = int(options.get("workers") or 1)
    return replace(ground, loaders=tuple(replace(one, workers=number) for one in ground.loaders))


def brings(ground: Ground, options: Mapping[str, str]) -> str:
    """With as many threads as the workers leave cores, where batches are calculated and not waited
    for: workers and threads that want more cores than there are wait for each other, and steps of
    24 to 60 ms follow each other where 16 would do. Not where fewer threads could become what the
    step waits for: at worst they take as many times as long as they are fewer."""
    cores, threads = _each(ground), max(ground.flags.threads, 1)
    left = max(cores - int(options.get("workers") or 0), 1)
    if ground.device != "cpu" or left >= threads:
        return ""
    loader = training_loader(ground.loaders)  # of one with workers, it is not known what those do
    makes = 0.0 if loader.workers else ground.input_share * (loader.worked or 0.0)
    rest = 1 - ground.input_share
    return "threads" if rest * threads / left <= (makes + rest * threads) / cores else ""


def apply(program: Program, options: Mapping[str, str]) -> None:
    asked = int(options.get("workers") or min(usable_cores(), MAX_WORKERS))

    def add_workers(made: Made) -> Reason | None:
        given = made.arguments
        obstacle = _obstacle(program.torch, given)
        if obstacle is not None:
            return obstacle
        # Workers that share a stream out make other batches of it, those that do not yield it as
        # often as they are: with one it stays the same.
        number = 1 if dataset.is_stream(program.torch, given.get("dataset")) else asked
        if given.get("num_workers", 0) >= number and number < asked:
            return because(Skip.STREAM_SHARED_BY_WORKERS)
        if given.get("num_workers", 0) == number:
            return None
        if _batches(given) == 1:
            return because(Skip.ONE_BATCH)
        given["num_workers"] = number
        return because(Done.OPTION, call="DataLoader", option="num_workers", value=number)

    program.on_loader(FIX.id, add_workers)


def _obstacle(torch: Any, given: Mapping[str, Any]) -> Reason | None:
    data = given.get("dataset")
    if dataset.is_stream(torch, data) and (name := dataset.position_attribute(data)):
        return because(Skip.STREAM_KEEPS_POSITION, attribute=name)
    if dataset.on_gpu(torch, data):
        return because(Skip.DATASET_ON_GPU)
    file = dataset.open_file(data)
    if file:
        return because(Skip.OPEN_FILE, file_kind=file)
    generator = dataset.own_generator(torch, data)
    if generator:
        return because(Skip.OWN_GENERATOR, generator=generator)
    if dataset.start_method(given.get("multiprocessing_context")) != "fork":
        return dataset.unpicklable(given)
    return None


def _batches(given: Mapping[str, Any]) -> int | None:
    """Return the number of batches in an epoch; None if it is not known."""
    if given.get("sampler") is not None or given.get("batch_sampler") is not None:
        return None
    size = given.get("batch_size", 1)
    try:
        return -(-len(given["dataset"]) // size) if size else None
    except Exception:  # a length of the user's own, which may raise what it likes
        return None


def _streams(ground: Ground) -> bool:
    return bool(ground.loaders) and all(one.stream for one in ground.loaders)


def _each(ground: Ground) -> int:
    return max(ground.cores // max(ground.ranks, 1), 1)
