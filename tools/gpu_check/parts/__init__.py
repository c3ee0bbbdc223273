"""The parts of the GPU check, one module each."""
