"""A whole topology in one process: each worker a thread on its own part of one GPU, with real kernels and batches."""
