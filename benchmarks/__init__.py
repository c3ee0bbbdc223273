"""Figures, each beside its floor or baseline measured in the same run: `python -m benchmarks.NAME`.

`report` is what all of them print. Not part of the distribution.
"""
