"""The user's functions in a traced loader, and what they call."""

from pathlib import Path

from ridgeline.records.sites import InputSites
from ridgeline.trace.analyses.input_sites import input_sites
from ridgeline.trace.links import Links
from ridgeline.trace.study import study_one
from tests.unit.trace.traces_made import Made

NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
FETCH = "torch/utils/data/_utils/fetch.py(48): fetch"


def found(made: Made, folder: Path) -> InputSites:
    trace = made.trace(folder)
    links = Links(trace)
    return input_sites(trace, links, study_one(trace, links).window, lambda f: "get_batch" in f)


def stepped() -> Made:
    return Made().span("ProfilerStep#0", 0, 1000).op("aten::mm", 700, 200)


def test_time_is_a_functions_own_and_that_of_what_it_calls(tmp_path: Path) -> None:
    made = stepped().span(NEXT, 10, 600).frame("train.py(1): <module>", 0, 990)
    made.frame(FETCH, 20, 500).frame("data.py(10): __getitem__", 30, 400)
    made.frame("json/__init__.py(299): loads", 40, 100)
    made.frame("data.py(3): decode", 150, 200)
    made.frame("<built-in method tensor of type object at 0x7f>", 160, 150)
    sites = found(made, tmp_path)
    assert (sites.kind, sites.ns) == ("single", 600_000)
    told = {
        s.place.function: (s.place.ns, [(c.name, c.ns) for c in s.callees]) for s in sites.sites
    }
    assert told == {
        "__getitem__": (200_000, [("loads", 100_000)]),
        "decode": (200_000, [("tensor", 150_000)]),
    }


def test_a_library_between_two_functions_is_not_counted_twice(tmp_path: Path) -> None:
    made = stepped().span(NEXT, 10, 600).frame("data.py(10): __getitem__", 30, 400)
    made.frame("torchvision/transforms/transforms.py(95): __call__", 40, 300)
    made.frame("data.py(3): flip", 50, 250)
    first, second = found(made, tmp_path).sites
    assert (first.place.function, first.place.ns) == ("flip", 250_000)
    assert second.place.ns == 150_000
    assert [(c.name, c.within, c.ns) for c in second.callees] == [
        ("__call__", "torchvision.transforms.transforms", 50_000)
    ]


def test_workers_leave_only_the_kind(tmp_path: Path) -> None:
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    sites = found(stepped().span(name, 10, 600), tmp_path)
    assert (sites.kind, sites.sites) == ("multiple", ())


def test_without_a_loader_a_function_by_its_name(tmp_path: Path) -> None:
    made = stepped().frame("train.py(1): <module>", 0, 990).frame("train.py(7): get_batch", 10, 300)
    sites = found(made, tmp_path)
    assert sites.kind == "by hand"
    assert [s.place.function for s in sites.sites] == ["get_batch"]


def test_a_trace_without_input_has_none(tmp_path: Path) -> None:
    assert found(stepped(), tmp_path) == InputSites()
