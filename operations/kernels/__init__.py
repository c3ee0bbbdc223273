"""The portable kernel language: an OpenCL C subset, checked and translated before compilation."""
