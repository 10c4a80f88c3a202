"""One model studied from its target to its report: joins what it costs, what the machine can do,
and what it takes when it runs."""
