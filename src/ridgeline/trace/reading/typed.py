"""An event as msgspec decodes it: sentinels for what is absent, lists left as text.

Stricter than the rule book on purpose: what does not fit these types (a number in quotes, a null,
an exponent) raises, and the event goes to `lenient`.
"""

from typing import Annotated

from msgspec import Meta, Raw, Struct, field
from msgspec.json import Decoder

from ridgeline.trace.reading.lenient import INFO, NARROW, SHAPE, WIDE

ABSENT = -(2**63)
"""Outside what any column accepts, so that a recorded -1 is not taken for nothing."""

NOTHING = Raw(b"")

Wide = Annotated[int, Meta(ge=-WIDE, le=WIDE)]
Narrow = Annotated[int, Meta(ge=-NARROW, le=NARROW)]
Id = Annotated[int, Meta(ge=-(10**17), le=10**17)]


class Args(Struct, gc=False):
    """The arguments that are kept; the field's name is its column's, `_2` a second spelling."""

    external: Wide = field(default=ABSENT, name="External id")
    external_2: Wide = field(default=ABSENT, name="external id")
    correlation: Wide = ABSENT
    device: Narrow = ABSENT
    device_2: Narrow = field(default=ABSENT, name="Device Id")
    stream: Narrow = ABSENT
    bytes: Wide = ABSENT
    bytes_2: Wide = field(default=ABSENT, name="Bytes")
    sequence: Wide = field(default=ABSENT, name="Sequence number")
    forward_thread: Narrow = field(default=ABSENT, name="Fwd thread id")
    frame: Wide = field(default=ABSENT, name="Python id")
    parent: Wide | None = field(default=ABSENT, name="Python parent id")
    module: Narrow = field(default=ABSENT, name="Python module id")
    allocated: Wide = field(default=ABSENT, name="Total Allocated")
    reserved: Wide = field(default=ABSENT, name="Total Reserved")
    device_type: Narrow = field(default=ABSENT, name="Device Type")
    graph: Narrow = field(default=ABSENT, name="graph id")
    graph_node: Wide = field(default=ABSENT, name="graph node id")
    dims: Raw = field(default=NOTHING, name="Input Dims")
    types: Raw = field(default=NOTHING, name="Input type")
    concrete: Raw = field(default=NOTHING, name="Concrete Inputs")
    strides: Raw = field(default=NOTHING, name="Input Strides")
    grid: Raw = NOTHING
    block: Raw = NOTHING
    occupancy: Raw = field(default=NOTHING, name="est. achieved occupancy %")
    collective: Raw = field(default=NOTHING, name="Collective name")
    dtype: Raw = NOTHING
    in_elements: Raw = field(default=NOTHING, name="In msg nelems")
    out_elements: Raw = field(default=NOTHING, name="Out msg nelems")
    in_split: Raw = field(default=NOTHING, name="In split size")
    out_split: Raw = field(default=NOTHING, name="Out split size")
    group_size: Raw = field(default=NOTHING, name="Group size")
    group_name: Raw = field(default=NOTHING, name="Process Group Name")
    group_description: Raw = field(default=NOTHING, name="Process Group Description")
    group_ranks: Raw = field(default=NOTHING, name="Process Group Ranks")
    group_id: Raw = field(default=NOTHING, name="Process Group ID")
    rank: Raw = field(default=NOTHING, name="Rank")
    source_rank: Raw = field(default=NOTHING, name="Src Rank")
    target_rank: Raw = field(default=NOTHING, name="Dst Rank")
    root_rank: Raw = field(default=NOTHING, name="Root Rank")
    seq: Raw = field(default=NOTHING, name="Seq")
    sync_kind: Raw = field(default=NOTHING, name="cuda_sync_kind")
    wait_stream: Raw = field(default=NOTHING, name="wait_on_stream")
    wait_event: Raw = field(default=NOTHING, name="wait_on_cuda_event_record_corr_id")
    backend: Raw = field(default=NOTHING, name="kernel_backend")
    file: Raw = field(default=NOTHING, name="kernel_file")
    kind: Raw = NOTHING
    stack: Raw = field(default=NOTHING, name="Call stack")
    hierarchy: Raw = field(default=NOTHING, name="Module Hierarchy")


class Event(Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Id | str = ""
    tid: Id | str = ""
    ts: Raw = NOTHING
    dur: Raw = NOTHING
    args: Args | None = None


SHAPE_FIELDS = ("dims", "types", "concrete", "strides")
_ENCODED = dict(zip(Args.__struct_fields__, Args.__struct_encode_fields__, strict=True))
INFO_FIELDS = tuple(f for f in Args.__struct_fields__ if _ENCODED[f] in INFO)
SHAPE_KEYS = tuple(_ENCODED[f].encode() for f in SHAPE_FIELDS)
INFO_KEYS = tuple(_ENCODED[f].encode() for f in INFO_FIELDS)
assert set(_ENCODED.values()) >= INFO | SHAPE

EVENT = Decoder(Event)
EVENTS = Decoder(list[Event])
PIECES = Decoder(list[Raw])
