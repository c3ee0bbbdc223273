"""The portable kernel source: an OpenCL C subset, read and checked before any compiler sees it."""
