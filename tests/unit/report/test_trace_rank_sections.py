"""The tables of ranks say what each figure is, and nothing where nothing is known."""

import msgspec
from made_up_trace import several, study

from ridgeline.report.trace_rank_sections import collectives, device_names, ranks


def test_columns_of_collectives_say_which_statistic_they_are() -> None:
    names = [column.name for column in collectives(several()).columns]
    assert names[4:7] == ["moving, median a call", "waited, sum over ranks", "skew, largest"]


def test_what_was_not_split_is_a_dash_and_not_never() -> None:
    found = several()
    assert found.ranks is not None
    unsplit = tuple(
        msgspec.structs.replace(r, wait_ns=None, transfer_ns=None, late_count=0, caused_wait_ns=0)
        for r in found.ranks.ranks
    )
    hidden = msgspec.structs.replace(
        found, ranks=msgspec.structs.replace(found.ranks, ranks=unsplit)
    )
    section = ranks(hidden)
    at = [column.name for column in section.columns].index("last to come")
    assert {row[at : at + 2] for row in section.rows} == {("—", "—")}
    assert ranks(found).rows[1][at] != "—"


def test_devices_are_counted_by_name() -> None:
    one = study().devices[0]
    devices = [msgspec.structs.replace(one, name=n) for n in ("V100", "V100", "H100")]
    assert device_names(msgspec.structs.replace(study(), devices=tuple(devices))) == (
        "2 × V100, 1 × H100"
    )
    assert device_names(msgspec.structs.replace(study(), devices=(devices[2],))) == "H100"
    assert device_names(msgspec.structs.replace(study(), devices=())) == ""
