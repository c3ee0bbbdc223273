"""Where the kernels of a graph run, one module for each way; `base` is what they have in common."""
