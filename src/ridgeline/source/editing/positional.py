"""The parameters that calls take by position, in order: what a bare argument is. A name that is
not in its tuple is taken by keyword only; `*` takes any number."""

_ADAM = ("params", "lr", "betas", "eps", "weight_decay", "amsgrad")

POSITIONAL: dict[str, tuple[str, ...]] = {
    "DataLoader": (
        *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers"),
        *("collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn"),
        *("multiprocessing_context", "generator"),
    ),
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "Adadelta": ("params", "lr", "rho", "eps", "weight_decay", "foreach"),
    "Adafactor": ("params", "lr", "beta2_decay", "eps", "d", "weight_decay"),
    "Adagrad": (
        *("params", "lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"),
        "foreach",
    ),
    "Adamax": ("params", "lr", "betas", "eps", "weight_decay", "foreach"),
    "ASGD": (
        *("params", "lr", "lambd", "alpha", "t0", "weight_decay", "foreach", "maximize"),
        *("differentiable", "capturable"),
    ),
    "LBFGS": ("params", "lr", "max_iter", "max_eval", "tolerance_grad", "tolerance_change"),
    "Muon": ("params", "lr", "weight_decay", "momentum", "nesterov"),
    "NAdam": (
        *("params", "lr", "betas", "eps", "weight_decay", "momentum_decay"),
        "decoupled_weight_decay",
    ),
    "RAdam": ("params", "lr", "betas", "eps", "weight_decay", "decoupled_weight_decay"),
    "RMSprop": (
        *("params", "lr", "alpha", "eps", "weight_decay", "momentum", "centered", "capturable"),
        *("foreach", "maximize", "differentiable"),
    ),
    "Rprop": ("params", "lr", "etas", "step_sizes"),
    "SGD": ("params", "lr", "momentum", "dampening", "weight_decay", "nesterov"),
    "SparseAdam": ("params", "lr", "betas", "eps", "maximize"),
    "autocast": ("device_type",),  # torch.cuda.amp's takes `enabled` first: no more is known
    "checkpoint": ("function", "*"),
    "compile": ("model",),
    "cross_entropy": ("input", "target", "weight", "size_average", "ignore_index", "reduce"),
    "CrossEntropyLoss": ("weight", "size_average", "ignore_index", "reduce", "reduction"),
    "cuda": ("device", "non_blocking"),
    "GradScaler": ("device", "init_scale", "growth_factor", "backoff_factor", "growth_interval"),
    "to": ("device",),  # of a tensor it may also be a dtype, or another tensor
    "TrainingArguments": ("output_dir",),
    "zero_grad": ("set_to_none",),
    "scaled_dot_product_attention": (
        *("query", "key", "value", "attn_mask", "dropout_p", "is_causal"),
    ),
}
