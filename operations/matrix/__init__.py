"""Products of matrices on a device, by our kernels or by cuBLAS."""
