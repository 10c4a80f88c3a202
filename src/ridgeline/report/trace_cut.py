"""The first rows of every table of a study, where a person asked for so many."""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.records.trace import TraceStudy


def first_rows(study: TraceStudy, most: int) -> TraceStudy:
    """Tables of what ran and of gaps; ranks, devices and steps are not a ranking."""
    return replace(
        study,
        idle=replace(study.idle, top=study.idle.top[:most]),
        kernels=study.kernels[:most],
        kernels_left_out=study.kernels_left_out + len(study.kernels[most:]),
        ops=study.ops[:most],
        shapes=study.shapes[:most],
        modules=study.modules[:most],
        roofline=replace(study.roofline, rows=study.roofline.rows[:most]),
        regions=study.regions[:most],
        critical_path=replace(study.critical_path, top=study.critical_path.top[:most]),
    )


def rows_of(study: TraceStudy) -> Mapping[str, Sequence[Struct]]:
    """The tables that can be cut, by the section that shows them."""
    return {
        "gaps": study.idle.top,
        "kernels": study.kernels,
        "ops": study.ops,
        "shapes": study.shapes,
        "modules": study.modules,
        "roofline": study.roofline.rows,
        "critical_path": study.critical_path.top,
    }


def longest_table(study: TraceStudy) -> int:
    """Rows of the longest table: as many as the study's bound, and some may be missing."""
    tables = (study.kernels, study.ops, study.shapes, study.modules, study.roofline.rows)
    return max(len(rows) for rows in tables)
