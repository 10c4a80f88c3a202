"""The rules of the input, of a dataset that hands out its samples itself."""

from typing import Any

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules.loader_faults import (
    few_workers,
    loader_starves,
    repeated_decoding,
    small_files,
)
from ridgeline.records.sites import Callee, InputSites
from ridgeline.source.file import SourceFiles
from tests.unit.diagnosis.rules.made_up_input import FILE, MS, PARSE, case, line, traced, view

STREAM = """\
import json
import torch
from torch.utils.data import DataLoader, IterableDataset



def parse(text):
    values = json.loads(text)
    return torch.tensor(values)


class Records(IterableDataset):
    def __iter__(self):
        for text in self.texts:
            yield parse(text)


loader = DataLoader(Records(), 32)
"""
LOADS = Callee(name="loads", within="json", ns=40 * MS)
PART = "for text in itertools.islice(self.texts, worker, None, workers):"


def streaming(text: str = STREAM, **given: Any) -> Case:
    return case(**{"input": traced(LOADS), **given}, sources=SourceFiles(texts={FILE: text}))


def test_workers_come_with_the_part_for_each() -> None:
    (finding,) = loader_starves(streaming())
    assert "DataLoader(Records(), 32, num_workers=2" in finding.change
    assert finding.change.endswith(PART)
    assert "every worker hands out all" in finding.doubt


def test_one_that_shares_its_samples_gets_workers_alone() -> None:
    shared = STREAM.replace("for text", "info = get_worker_info()\n        for text")
    (finding,) = loader_starves(streaming(shared))
    assert "num_workers=2" in finding.change
    assert "islice" not in finding.change
    assert finding.doubt == ""


def test_more_workers_too() -> None:
    busy = view(line(PARSE, "parse", 0.9), workers=2)
    told = streaming(workers=2, used=1.0, worker_cores=2.0, python=busy, input=InputSites())
    (finding,) = few_workers(told)
    assert "num_workers=5" in finding.change
    assert finding.change.endswith(PART)
    assert "every worker hands out all" in finding.doubt


def test_what_is_decoded_once_is_handed_out_by_its_own_loop() -> None:
    (finding,) = repeated_decoding(streaming(epochs=3))
    assert finding.change.splitlines() == [
        "# in Records.__init__: once a sample",
        "self.decoded = [parse(text) for text in self.texts]",
        "# in __iter__, which calls parse(text)",
        "for sample in self.decoded:",
    ]
    assert "index" not in finding.change


def test_what_the_loop_itself_decodes_is_kept_whole() -> None:
    inside = STREAM.replace("yield parse(text)", "yield json.loads(text)")
    here = traced(LOADS, line=13, function="__iter__")
    (finding,) = repeated_decoding(streaming(inside, epochs=3, input=here))
    assert "self.decoded = list(self.read())" in finding.change
    assert "__getitem__" not in finding.change


def test_files_in_one_are_gone_through_too() -> None:
    reading = STREAM.replace("yield parse(text)", "yield open(text).read()")
    here = traced(Callee(name="read", ns=40 * MS), line=13, function="__iter__")
    (finding,) = small_files(streaming(reading, input=here))
    assert finding.change.endswith("for sample in self.samples:")


def test_whole_batches_of_one_take_no_sampler() -> None:
    rows = streaming(input=InputSites(kind="single", ns=50.0 * MS))
    assert rows.study is not None
    idle = replace(rows.study.idle, causes=())
    many = replace(rows.throughput, samples_per_step=5000.0)
    rows = replace(rows, study=replace(rows.study, idle=idle), throughput=many)
    (finding,) = loader_starves(rows)
    assert "Sampler" not in finding.change
    assert "batch_size=None" in finding.change
