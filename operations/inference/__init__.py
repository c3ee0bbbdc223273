"""Models in ONNX, for the operations that run them: loading, checking tensors, joining calls."""
