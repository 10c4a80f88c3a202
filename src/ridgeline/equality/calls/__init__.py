"""Collects evidence of what workloads compute, and judges whether two compute the same."""
