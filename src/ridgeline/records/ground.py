"""Says what is known of a program and its machine before anything is tried: whether a change could
be put on there, and whether it could win."""

from msgspec import Struct

from ridgeline.records.run import Flags, LoaderSeen, ModuleSeen, OptimizerSeen


class NumaNode(Struct, frozen=True, kw_only=True):
    """Cores with memory of their own; that of another node is farther away."""

    number: int
    cores: tuple[int, ...] = ()
    """The cores that the program may use, as the system numbers them; two may be threads of one
    core."""
    physical: int = 0
    """The number of these that share their arithmetic with no other core."""


class Ground(Struct, frozen=True, kw_only=True):
    device: str = "cpu"
    """cpu or cuda"""
    capability: tuple[int, int] = (0, 0)
    """The GPU's compute capability: 8.0 and later have bfloat16 and TF32 in their tensor cores."""
    cores: int = 1
    """The number of cores that the program may use."""
    torch: tuple[int, int] = (2, 6)
    emulated: tuple[str, ...] = ()
    """Types the processor has no instructions for."""
    compiler: bool = True
    """torch.compile can make code here: g++ for a CPU, Triton for a GPU."""
    ranks: int = 1
    trains: bool = True
    loaders: tuple[LoaderSeen, ...] = ()
    optimizers: tuple[OptimizerSeen, ...] = ()
    modules: tuple[ModuleSeen, ...] = ()
    flags: Flags = Flags()
    autocast: tuple[str, ...] = ()
    """The program's own."""
    in_16_bits: bool = False
    """Its products are, by a change that is kept."""
    compiled: bool = False
    convolutions: bool = False
    """Operators seen in a traced step."""
    products_share: float | None = None
    """The largest share of the step that matrix products and convolutions may take; None if no
    operator was recorded."""
    products_least_share: float | None = None
    """The smallest share of the step that they take."""
    loss_share: float = 0.0
    """The share of the step that softmax and loss over many classes take, forward and backward."""
    odd_widths: bool = False
    """A product of large matrices has a side that is no multiple of 64."""
    shapes_change: bool = False
    busy: float = 0.0
    """Share of the step in which the device works; on a CPU the largest share that is possible."""
    input_share: float = 0.0
    optimizer_share: float | None = None
    """None if the phases of the step are not known."""
    system_share: float | None = None
    """The share of the step that the system works for the program (pages, files), over all
    threads."""
    overhead_share: float = 0.0
    copy_share: float = 0.0
    """The share of the step that copies from the host to the device take."""
    copies: float | None = None
    """The copies from the host to the device in a traced step; None: not known."""
    findings: tuple[str, ...] = ()
    """Ids of the rules that found something."""
    variables: dict[str, str] = {}
    """The environment variables of the allow list that are set."""
    processors: int = 0
    """The cores of the machine; 0: not known. `cores` may be fewer."""
    nodes: tuple[NumaNode, ...] = ()
    """The NUMA nodes of the machine that have cores; empty: not known."""
    gpu_address: str = ""
    """The address on the PCI bus, as sysfs names it: 0000:19:00.0."""
    gpu_node: int = -1
    """The node it hangs on; -1: not known."""
