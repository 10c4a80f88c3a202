"""Says what the terms of a report mean, for a reader who meets them for the first time. A page
shows the sentence to whoever hovers over the term."""

_TERMS = {
    "step": "One iteration of the training loop: a batch is fetched, the model runs forward and "
    "backward, and the optimizer updates the parameters.",
    "phases": "The parts of a step: input, transfer, forward, backward, optimizer, evaluation, and "
    "other.",
    "warm-up": "The first steps, in which memory is allocated and code is compiled. They are "
    "slower than the rest, and are not counted.",
    "input": "Time in which the program waits for the next batch.",
    "transfer": "Time in which a batch is copied to the device.",
    "forward": "Time in which the model computes its outputs and the loss.",
    "backward": "Time in which gradients are computed.",
    "optimizer": "Time in which the parameters are updated.",
    "evaluation": "Time in which the model runs without training.",
    "MFU": "Model FLOPs utilisation: the arithmetic that the model needs, as a share of what the "
    "device could do in the same time.",
    "FLOP": "A floating-point operation: one addition or one multiplication.",
    "roofline": "A picture of what limits an operation: below the sloped roof it waits for memory, "
    "below the flat one for arithmetic.",
    "ridge": "The intensity at which the roof turns flat: below it an operation waits for memory, "
    "above it for arithmetic.",
    "compute-bound": "Limited by how much arithmetic the device can do.",
    "memory-bound": "Limited by how fast data moves to and from memory.",
    "overhead-bound": "So short that starting it costs as much as its work.",
    "datasheet": "The manufacturer's figure, which no program quite reaches.",
    "modules": "The parts of which a model is built, such as a layer or a block of layers.",
    "stacks": "Which function has called which, at one moment.",
    "collectives": "Operations in which all processes of a job exchange data.",
    "intensity": "Operations for each byte that is moved to or from memory. The higher, the less "
    "the speed of memory matters.",
    "ceiling": "The most that this machine can do, measured here or taken from its datasheet.",
    "kernel": "A function that runs on the GPU.",
    "kernels": "Functions that run on the GPU.",
    "operators": "Functions of PyTorch, such as a matrix product, of which a program is made.",
    "exposed": "Exposed time is what the step would lose without the fault: time that nothing else "
    "hides.",
    "peak memory": "The most memory that was in use at any moment.",
    "throughput": "How many samples or tokens the program processes in a second.",
    "95 %": "The interval that holds the true value in 95 of 100 measurements like this one.",
    "idle": "Time in which the device has nothing to do.",
    "telemetry": "What the machine says of itself several times a second: use, clocks, power, "
    "heat.",
    "throttled": "The device lowers its clocks, because it draws too much power or is too hot.",
    "graph breaks": "Places at which torch.compile stops compiling and goes back to Python.",
    "recompiles": "torch.compile compiles a function again because its inputs have changed.",
    "baseline": "The program as it is, without any fix.",
    "A/A control": "The baseline measured against itself. It shows how much of a ratio is noise.",
    "candidate": "The program with fixes.",
    "ratio": "How many times as fast: 2 means half the time.",
    "trial": "One run of the program in a fresh process.",
    "race": "Candidates and the baseline timed in turns in one process.",
    "activation": "An output of a layer, kept until the backward pass needs it.",
    "activations": "Outputs of layers, kept until the backward pass needs them.",
    "overhead": "What recording costs the program.",
}

TERMS = {term.lower(): text for term, text in _TERMS.items()}
