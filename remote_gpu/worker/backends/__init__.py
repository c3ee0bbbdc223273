"""The backends of kernels: OpenCL, CUDA, and a host without either; `base` has their protocols."""
