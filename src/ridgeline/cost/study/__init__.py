"""The study of one model, from its target to its report: what it costs by counting, what the
machine can do, and what time and memory it takes when it runs."""
