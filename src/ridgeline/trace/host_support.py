"""Which types this machine's CPU has no instructions for, measured or not."""

from ridgeline.machine import native, processor


def emulated_here() -> tuple[str, ...]:
    """Empty where the CPU does not tell its instructions."""
    flags = processor.flags()
    return tuple(d for d in ("bfloat16", "float16") if not native.on_cpu(d, flags).native)
