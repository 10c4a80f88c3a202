"""Storages from birth to death."""

import gc

import pytest
import torch

from ridgeline.cost.counting.ledger import StorageLedger


def test_a_storage_is_live_until_it_dies() -> None:
    ledger = StorageLedger()
    x = torch.zeros(10)
    entry = ledger.add(x, "intermediate", op="aten::zeros", module="a.b", phase="forward")
    assert entry is not None
    assert (entry.bytes, entry.born, entry.died) == (40, 1, None)
    assert (entry.shape, entry.dtype, entry.op, entry.module) == (
        (10,), "float32", "aten::zeros", "a.b",
    )  # fmt: skip
    assert ledger.live_bytes == 40
    del x
    gc.collect()
    assert entry.died == 2
    assert ledger.live_bytes == 0
    assert ledger.peak_bytes == 40


def test_the_peak_is_the_largest_total_and_names_its_operator() -> None:
    ledger = StorageLedger()
    a = torch.zeros(100)
    ledger.add(a, "first", op="one")
    b = torch.zeros(50)
    ledger.add(b, "second", op="two", module="m", phase="backward")
    del a
    c = torch.zeros(60)
    ledger.add(c, "third", op="three")
    assert ledger.peak_bytes == 600
    assert ledger.peak_context == ("backward", "two", "m")
    assert [e.kind for e in ledger.alive_at(ledger.peak_event)] == ["first", "second"]
    assert [e.kind for e in ledger.alive_at(ledger.now)] == ["second", "third"]
    assert ledger.live_bytes == 440


def test_a_view_is_no_event_and_keeps_its_storage_alive() -> None:
    ledger = StorageLedger()
    x = torch.zeros(4, 4)
    ledger.add(x, "x")
    view = x[1:].t()
    assert ledger.add(view, "view") is None
    assert ledger.live_bytes == 64
    del x
    assert ledger.live_bytes == 64
    del view
    assert ledger.live_bytes == 0


def test_an_expanded_tensor_counts_its_stored_bytes() -> None:
    ledger = StorageLedger()
    wide = torch.zeros(1, 8).expand(10**6, 8)
    ledger.add(wide, "x")
    assert ledger.live_bytes == 32


@pytest.mark.parametrize(("elements", "rounded"), [(1, 512), (128, 512), (129, 1024), (0, 0)])
def test_sizes_are_rounded_up_to_blocks(elements: int, rounded: int) -> None:
    ledger = StorageLedger(round_to=512)
    x = torch.zeros(elements)
    ledger.add(x, "x")
    assert ledger.live_bytes == rounded


def test_hidden_bytes_come_on_top() -> None:
    ledger = StorageLedger()
    x = torch.zeros(2)
    ledger.add(x, "x", hidden_bytes=100)
    assert ledger.live_bytes == 108


def test_storages_without_data_have_sizes_and_lifetimes() -> None:
    ledger = StorageLedger()
    x = torch.empty(2**40, device="meta")
    ledger.add(x, "x")
    assert ledger.peak_bytes == 2**42
    del x
    assert ledger.live_bytes == 0


def test_add_all_returns_the_new_bytes() -> None:
    ledger = StorageLedger()
    x = torch.zeros(4)
    assert ledger.add_all([x, x.view(2, 2), torch.zeros(0)], "x") == 16


def test_an_entry_is_found_by_any_view() -> None:
    ledger = StorageLedger()
    x = torch.zeros(4)
    entry = ledger.add(x, "x")
    assert ledger.entry_of(x[2:]) is entry
    assert ledger.entry_of(torch.zeros(1)) is None


def test_storages_are_not_followed_after_release() -> None:
    ledger = StorageLedger()
    x = torch.zeros(4)
    entry = ledger.add(x, "x")
    ledger.release()
    del x
    gc.collect()
    assert entry is not None
    assert entry.died is None


def test_sparse_tensors_are_skipped_without_an_error() -> None:
    ledger = StorageLedger()
    assert ledger.add(torch.eye(3).to_sparse(), "x") is None
