"""Where workloads live: this process or a child, and what can be asked of either."""
