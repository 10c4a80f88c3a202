"""Kineto traces: read into columns, checked, and analysed; one analysis a file. Free of torch."""
