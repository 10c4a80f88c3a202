"""From sampled stacks to the user's lines; no program is run."""

import sysconfig
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

from ridgeline.diagnosis.python_view import python_stacks, python_view
from ridgeline.harness import capture
from ridgeline.records.run import OMITTED_FRAMES, OTHER_STACKS, PythonLine, PythonView, Sampled
from ridgeline.records.run_directory import RunDirectory

MS = 1_000_000
TORCH = find_spec("torch")
assert TORCH is not None
assert TORCH.origin is not None
SITE = str(Path(TORCH.origin).parents[1])
STD = sysconfig.get_path("stdlib")
CAPTURE = Path(capture.__file__).parent
DATA = f"{SITE}/torch/utils/data"
TRAIN = "/home/me/train.py"
LOOP = f"{DATA}/_utils/worker.py:290:_worker_loop"
FETCH = f"{DATA}/_utils/fetch.py:54:_MapDatasetFetcher.fetch"
FETCH_EACH = f"{DATA}/_utils/fetch.py:54:_MapDatasetFetcher.fetch.<locals>.<listcomp>"
GET = f"{STD}/multiprocessing/queues.py:113:Queue.get"
POLL = f"{STD}/selectors.py:415:_PollLikeSelector.select"
WAITS = (
    f"{DATA}/dataloader.py:700:_BaseDataLoaderIter.__next__",
    f"{DATA}/dataloader.py:1400:_MultiProcessingDataLoaderIter._next_data",
    GET,
    POLL,
)

Stacks = Iterable[tuple[tuple[str, ...], int]]


def main(*stacks: tuple[tuple[str, ...], int]) -> Sampled:
    return Sampled(
        pid=1, samples=sum(n for _, n in stacks), interval_ns=10 * MS, stacks=tuple(stacks)
    )


def worker(number: int, *stacks: tuple[tuple[str, ...], int]) -> Sampled:
    samples = sum(n for _, n in stacks)
    return Sampled(
        pid=100 + number,
        process="worker",
        worker=number,
        samples=samples,
        interval_ns=10 * MS,
        stacks=tuple(stacks),
    )


def line(view: PythonView, place: str) -> PythonLine:
    return next(found for found in view.lines if f"{found.file}:{found.line}" == place)


def test_a_sample_is_the_innermost_own_lines_and_part_of_its_callers_total() -> None:
    view = python_view([
        main(
            ((f"{TRAIN}:90:<module>", f"{TRAIN}:40:train", f"{TRAIN}:12:step"), 30),
            ((f"{TRAIN}:90:<module>", f"{TRAIN}:41:train"), 10),
        )
    ])  # fmt: skip
    assert [(found.line, found.share, found.total_share) for found in view.lines] == [
        (12, 0.75, 0.75),
        (41, 0.25, 0.25),
    ]
    assert view.lines[0].seconds == pytest.approx(0.3)
    train = next(found for found in view.functions if found.function == "train")
    assert (train.share, train.total_share) == (0.25, 1.0)


def test_library_time_is_the_calling_lines_and_names_what_was_called() -> None:
    resize = f"{SITE}/PIL/Image.py:2300:Image.resize"
    view = python_view([
        main(
            ((f"{TRAIN}:5:load", resize, f"{SITE}/PIL/ImageFile.py:9:load"), 9),
            ((f"{TRAIN}:5:load",), 3),
        )
    ])  # fmt: skip
    (found,) = view.lines
    assert (found.line, found.calls, found.share) == (5, "PIL.Image.Image.resize", 1.0)


def test_functions_that_only_hand_on_are_not_what_was_called() -> None:
    module = f"{SITE}/torch/nn/modules/module.py"
    stack = (
        f"{TRAIN}:5:forward",
        f"{module}:1775:Module._wrapped_call_impl",
        f"{module}:1786:Module._call_impl",
        f"{SITE}/torch/nn/modules/conv.py:550:Conv2d.forward",
    )
    assert python_view([main((stack, 1))]).lines[0].calls == "torch.nn.modules.conv.Conv2d.forward"


def test_waiting_for_the_loader_shows_as_such_at_the_users_loop() -> None:
    view = python_view([main(((f"{TRAIN}:20:<module>", *WAITS), 80), ((f"{TRAIN}:21:go",), 20))])
    assert view.lines[0].line == 20
    assert view.lines[0].calls == "DataLoader, waiting for a batch"
    assert view.lines[0].share == 0.8


def test_an_idle_worker_is_counted_and_in_no_share() -> None:
    view = python_view([
        worker(0, ((LOOP, GET, POLL), 60), ((LOOP, FETCH, FETCH_EACH, "/home/me/d.py:7:f"), 40)),
        worker(1, ((LOOP, GET, POLL), 100)),
    ])  # fmt: skip
    assert (view.worker_samples, view.worker_idle_samples, view.workers) == (200, 160, 2)
    assert [(found.line, found.share) for found in view.lines] == [(7, 1.0)]


def test_a_forked_workers_stack_is_not_its_parents() -> None:
    parent = (f"{TRAIN}:20:<module>", f"{DATA}/dataloader.py:1170:__init__")
    view = python_view(
        [worker(0, ((*parent, LOOP, GET), 5), ((*parent, LOOP, FETCH, "/d.py:7:f"), 5))]
    )
    assert [found.file for found in view.lines] == ["/d.py"]
    assert view.lines[0].total_share == 1.0
    assert view.worker_idle_samples == 5


def test_a_worker_in_library_code_alone_names_the_function_it_called() -> None:
    collate = f"{DATA}/_utils/collate.py"
    view = python_view([
        worker(0, ((LOOP, FETCH, f"{collate}:401:default_collate", f"{collate}:155:collate"), 5))
    ])  # fmt: skip
    assert (view.lines[0].function, view.lines[0].line) == ("default_collate", 401)


def test_shares_of_main_and_workers_stand_apart() -> None:
    view = python_view([
        main(((f"{TRAIN}:20:<module>", *WAITS), 90), ((f"{TRAIN}:21:<module>",), 10)),
        worker(0, ((LOOP, FETCH, "/d.py:7:f"), 400)),
    ])  # fmt: skip
    assert [(found.process, found.share) for found in view.lines] == [
        ("worker", 1.0),
        ("main", 0.9),
        ("main", 0.1),
    ]


def test_rows_stand_by_time_and_chance_ones_are_left_out() -> None:
    view = python_view([
        main(((f"{TRAIN}:20:f",), 43), ((f"{TRAIN}:21:f",), 57), ((f"{TRAIN}:22:g",), 2)),
        worker(0, ((LOOP, FETCH, "/d.py:7:f"), 1), ((LOOP, GET, POLL), 99)),
    ])  # fmt: skip
    assert [found.line for found in view.lines] == [21, 20]
    assert [found.function for found in view.functions] == ["f"]


def test_few_samples_are_shown_where_there_are_no_others() -> None:
    view = python_view([main(((f"{TRAIN}:20:f",), 9), ((f"{TRAIN}:21:f",), 1))])
    assert [found.line for found in view.lines] == [20, 21]


def test_the_line_waited_for_stands_before_the_one_that_waits() -> None:
    view = python_view([
        main(((f"{TRAIN}:20:<module>", *WAITS), 90), ((f"{TRAIN}:21:<module>",), 30)),
        worker(0, ((LOOP, FETCH, "/d.py:7:f"), 60), ((LOOP, FETCH, "/d.py:8:f"), 10)),
    ])  # fmt: skip
    assert [found.line for found in view.lines] == [7, 20, 21, 8]


def test_our_own_hooks_are_nobodys_time() -> None:
    step = (f"{TRAIN}:9:<module>", f"{SITE}/torch/optim/optimizer.py:480:Optimizer.step")
    ends = f"{CAPTURE}/session.py:100:Session.optimizer_ends"
    zero = (f"{TRAIN}:8:<module>", f"{CAPTURE}/seams.py:107:Seams._wrap_zero_grad.zero_grad")
    view = python_view([
        main(
            ((*step,), 30), ((*zero, f"{SITE}/torch/optim/optimizer.py:990:wrapper"), 10),
            ((*step, ends, f"{SITE}/torch/profiler/profiler.py:7:stop"), 60),
        ),
    ])  # fmt: skip
    assert view.main_samples == 40
    assert view.interval_ns == 10 * MS
    assert [(found.line, found.share) for found in view.lines] == [(9, 0.75), (8, 0.25)]
    assert view.lines[0].seconds == pytest.approx(0.3)


def test_imports_are_start_up_and_what_an_imported_file_does_is_not() -> None:
    loads = "<frozen importlib._bootstrap>:1176:_find_and_load"
    view = python_view([
        main(
            ((f"{TRAIN}:1:<module>", loads, f"{SITE}/torch/__init__.py:9:<module>"), 200),
            ((f"{TRAIN}:2:<module>", loads, "/home/me/data.py:5:<module>"), 20),
            ((f"{TRAIN}:9:<module>", f"{SITE}/torch/a.py:1:f", f"{SITE}/torch/b.py:1:g", loads), 5),
        ),
    ])  # fmt: skip
    assert [(found.line, found.share) for found in view.lines] == [(5, 0.8), (9, 0.2)]


@pytest.mark.parametrize("folder", ["/code", "/datasets/x", "/home/me/proj/torch_things"])
def test_a_users_folder_may_be_called_as_a_library_is(folder: str) -> None:
    view = python_view([main(((f"{folder}/train.py:3:<module>",), 4))])
    assert view.lines[0].file == f"{folder}/train.py"


def test_code_given_on_the_command_line_is_the_users() -> None:
    view = python_view([main((("<string>:1:<module>", "<string>:4:work"), 4))])
    assert (view.lines[0].line, view.lines[0].function) == (4, "work")


def test_functions_a_library_made_from_text_are_not_the_users() -> None:
    view = python_view([main(((f"{TRAIN}:3:<module>", "<string>:2:__init__"), 4))])
    assert [found.line for found in view.lines] == [3]
    assert view.lines[0].calls == "string.__init__"


def test_a_library_run_as_a_program_is_the_users_own() -> None:
    stack = (
        "<frozen runpy>:198:_run_module_as_main",
        f"{SITE}/theirs/train.py:9:main",
        f"{SITE}/torch/_tensor.py:600:Tensor.backward",
    )
    view = python_view([main((stack, 4))])
    assert (view.lines[0].line, view.lines[0].calls) == (9, "torch._tensor.Tensor.backward")


def test_a_comprehension_is_its_functions_line() -> None:
    stack = (f"{TRAIN}:8:D.__getitem__", f"{TRAIN}:8:D.__getitem__.<locals>.<listcomp>")
    view = python_view([main((stack, 4))])
    assert [(f.function, f.share, f.total_share) for f in view.lines] == [("D.__getitem__", 1, 1)]


def test_comprehensions_in_one_another_and_at_the_top_are_too() -> None:
    inner = (
        f"{TRAIN}:8:f.<locals>.<listcomp>.<genexpr>",
        f"{TRAIN}:9:f.<locals>.g.<locals>.<genexpr>",
    )
    view = python_view([main(((inner[0],), 3), ((inner[1],), 2), ((f"{TRAIN}:1:<listcomp>",), 1))])
    assert [found.function for found in view.lines] == ["f", "f.<locals>.g", "<module>"]


def test_what_had_no_room_counts_in_the_whole() -> None:
    stacks = (((OTHER_STACKS,), 50), ((f"{TRAIN}:3:<module>", OMITTED_FRAMES, f"{TRAIN}:9:f"), 50))
    view = python_view([main(*stacks)])
    assert [(found.line, found.share) for found in view.lines] == [(9, 0.5)]
    assert view.main_samples == 100


def test_a_line_has_its_text_and_a_function_its_beginning(tmp_path: Path) -> None:
    file = tmp_path / "data.py"
    file.write_text(
        "class D:\n    @staticmethod\n    def load(x):\n        y = x\n        return f(y)\n"
    )
    view = python_view([main(((f"{file}:5:D.load",), 4))])
    assert view.lines[0].source == "return f(y)"
    assert (view.functions[0].line, view.functions[0].source) == (3, "def load(x):")


def test_a_file_that_cannot_be_read_leaves_the_text_out(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_bytes(b"# coding: nonsense\n\xff")
    stacks = [((f"{tmp_path}/bad.py:1:f",), 1), (("/dev/stdin:1:f",), 1), (("/gone.py:4:f",), 1)]
    view = python_view([main(*stacks)])
    assert [found.source for found in view.lines] == ["", "", ""]


def test_nothing_sampled_is_an_empty_view() -> None:
    assert python_view([]) == PythonView()


def test_torn_lines_are_left_out(tmp_path: Path) -> None:
    whole = b'{"pid":7,"samples":2,"interval_ns":1,"stacks":[[["/a.py:1:f"],2]]}\n'
    (tmp_path / "python-7.jsonl").write_bytes(whole + whole[:30])
    (tmp_path / "python-8.jsonl").write_bytes(b"\x00\xff\n" + whole)
    assert [record.samples for record in RunDirectory(tmp_path).sampled()] == [2, 2]


NEXT = (
    f"{TRAIN}:90:<module>",
    f"{DATA}/dataloader.py:700:_BaseDataLoaderIter.__next__",
    f"{DATA}/dataloader.py:800:_SingleProcessDataLoaderIter._next_data",
)
GET_BATCH = f"{TRAIN}:12:Pictures.__getitem__"
DECODE = f"{TRAIN}:5:decode"
COLLATE = f"{DATA}/_utils/collate.py:275:collate_tensor_fn"


def test_in_the_main_process_only_what_is_beneath_the_loader_counts() -> None:
    view = python_view([
        main(
            ((*NEXT, FETCH, FETCH_EACH, GET_BATCH, DECODE), 60),
            ((*NEXT, FETCH, FETCH_EACH, GET_BATCH), 20),
            ((*NEXT, FETCH, COLLATE), 20),
            ((f"{TRAIN}:90:<module>", f"{TRAIN}:40:train"), 300),
        )
    ])  # fmt: skip
    made = view.input
    assert (made.main_samples, made.worker_samples) == (100, 0)
    first = made.lines[0]
    assert (first.line, first.function, first.share, first.process) == (5, "decode", 0.6, "main")
    assert [line.calls for line in made.lines if not line.file] == [
        "torch.utils.data._utils.collate.collate_tensor_fn"
    ]
    assert made.functions == (f"{TRAIN}:Pictures.__getitem__", f"{TRAIN}:decode")


def test_a_worker_that_waits_and_a_program_that_waits_make_nothing() -> None:
    view = python_view([
        worker(0, ((LOOP, *WAITS[2:]), 50), ((LOOP, FETCH, GET_BATCH, DECODE), 50)),
        main(((f"{TRAIN}:90:<module>", *WAITS), 70)),
    ])  # fmt: skip
    made = view.input
    assert (made.main_samples, made.worker_samples) == (0, 50)
    assert made.lines[0].share == 1.0
    assert made.lines[0].process == "worker"


def test_a_function_that_makes_batches_by_its_name() -> None:
    view = python_view([
        main(
            ((f"{TRAIN}:90:<module>", f"{TRAIN}:20:get_batch", DECODE), 30),
            ((f"{TRAIN}:90:<module>", f"{TRAIN}:40:train"), 70),
        )
    ])  # fmt: skip
    assert view.input.main_samples == 30
    assert view.input.lines[0].function == "decode"


def test_without_a_loader_there_is_nothing() -> None:
    assert python_view([main(((f"{TRAIN}:40:train",), 70))]).input.lines == ()


def test_stacks_are_joined_where_they_begin_alike() -> None:
    own, library = TRAIN, f"{SITE}/lib/io.py"
    main = Sampled(pid=1, samples=10, interval_ns=10_000_000, stacks=(
        ((f"{own}:3:<module>", f"{own}:9:load", f"{library}:4:read"), 6),
        ((f"{own}:3:<module>", f"{own}:9:load", f"{library}:8:read"), 3),
        ((f"{own}:4:<module>",), 1),
    ))  # fmt: skip
    found = python_stacks([main])
    counts = {(n.function, n.line): (n.main, n.is_own) for n in found.nodes}
    assert counts["<module>", 3] == (9, True)
    assert counts["load", 9] == (9, True)
    assert counts["read", 0] == (9, False)  # two lines of a library's function are one node
    assert found.nodes[[n.function for n in found.nodes].index("read")].file == "lib/io.py"
    assert all(n.parent < i for i, n in enumerate(found.nodes))
    assert (found.main, found.worker, found.left_out) == (10, 0, 0)
    assert found.interval_s == pytest.approx(0.01)


def test_a_tree_of_stacks_is_bounded_and_says_what_it_leaves_out() -> None:
    stacks = tuple(
        (("/home/me/train.py:1:<module>", f"/home/me/train.py:{i + 2}:f{i}"), i + 1)
        for i in range(100)
    )
    found = python_stacks([Sampled(pid=1, samples=5050, interval_ns=10, stacks=stacks)], limit=11)
    assert len(found.nodes) == 11
    assert found.left_out == 90
    assert {n.function for n in found.nodes[1:]} == {f"f{i}" for i in range(90, 100)}
