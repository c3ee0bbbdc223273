"""The experiments of the five papers, rerun: each figure and table beside ours.

`reference.yaml` has the papers' numbers, with page or figure, and what is accepted of ours. A
module `experiments/NAME.py` has one experiment: what it runs, and its pictures. `python -m
experiments` (`make papers`) runs them and writes `docs/papers.md`. Experiments on the real system
take their figures from `benchmarks`, simulated ones from the production cores (`simulator`).
"""
