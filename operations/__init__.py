"""Trusted operations by name, and the language of callers' kernels.

    plugins        one module per operation, which declares `OPERATIONS`; found by their presence
    alignment      searches of protein databases
    recognition    text in images, on `inference`: ONNX models, calls in batches
    matrix         products of matrices; array_kernels, aes: kernels of their operations
    kernels        the kernel language: source, checks, translation

Operations reach the worker by `remote_gpu.api` only. `kernels` is below the worker, which compiles
graphs by it, and knows `remote_gpu.wire` only.
"""
