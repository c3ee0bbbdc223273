"""The readers of values: scalars, lists, maps and blocks of known keys."""
