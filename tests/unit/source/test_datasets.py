"""Datasets that hand out their samples themselves, and how workers share them."""

import pytest

from ridgeline.source.datasets import IterableData, dataset_class, iterable_data
from ridgeline.source.file import SourceFile, SourceFiles

STREAM = """\
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        for blob in self.blobs:
            yield self.decode(blob)
"""


def found(text: str, name: str = "Stream") -> IterableData | None:
    return iterable_data(SourceFiles(texts={"a.py": text}), ["gone.py", "", "a.py"], name)


def test_workers_of_a_stream_need_a_part_each() -> None:
    data = found(STREAM)
    assert data is not None
    assert not data.shares
    assert data.shared().splitlines()[1:] == [
        "info = torch.utils.data.get_worker_info()",
        "worker, workers = (info.id, info.num_workers) if info is not None else (0, 1)",
        "for blob in itertools.islice(self.blobs, worker, None, workers):",
    ]


def test_what_is_asked_by_number_is_dealt_out_by_the_loader() -> None:
    assert found(STREAM, "Other") is None
    numbered = "class Stream(Dataset):\n    def __getitem__(self, i):\n        return i\n"
    assert found(numbered) is None
    both = f"{numbered}    def __iter__(self):\n        yield 1\n"
    assert found(both) is None


def test_by_its_methods_and_its_base_in_the_same_file() -> None:
    plain = STREAM.replace("torch.utils.data.IterableDataset", "object")
    assert found(plain) is not None
    derived = f"{STREAM}\n\nclass Mine(Stream):\n    pass\n"
    data = found(derived, "Mine")
    assert data is not None
    assert data.over == "self.blobs"


@pytest.mark.parametrize(
    "text",
    [
        STREAM.replace("for blob", "info = get_worker_info()\n        for blob"),
        STREAM.replace("in self.blobs", "in part(self.blobs)")
        + "def part(all_):\n    return all_[get_worker_info().id :: 2]\n",
        STREAM + "def start(n):\n    get_worker_info().dataset.cut(n)\n"
        "loader = DataLoader(Stream(), worker_init_fn=start)\n",
    ],
)
def test_one_that_asks_which_worker_it_is_shares(text: str) -> None:
    data = found(text)
    assert data is not None
    assert data.shares


def test_the_loop_that_is_shared_out_is_over_samples() -> None:
    epochs = """\
class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(self.epochs):
            for path in self.paths:
                for row in open(path):
                    yield row
"""
    data = found(epochs)
    assert data is not None
    assert (data.target, data.over) == ("path", "self.paths")
    for ending in ("yield from self.rows", "return iter(self.rows)"):
        data = found(f"class Stream(IterableDataset):\n    def __iter__(self):\n        {ending}\n")
        assert data is not None
        assert data.shared().endswith(
            "yield from itertools.islice(self.rows, worker, None, workers)"
        )


def test_the_class_a_loader_is_given() -> None:
    source = SourceFile("a.py", "data = lib.Stream(3)\n")
    assert dataset_class(source, "data") == "Stream"
    assert dataset_class(source, "Stream()") == "Stream"
    assert dataset_class(source, "other") == ""
    assert dataset_class(None, "a b") == ""
