"""Memory: snapshots of the CUDA allocator, what was live at the peak, growth, fragmentation."""
