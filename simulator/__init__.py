"""Both production cores and the cloud model in one world, on virtual time, under faults.

A seed decides everything: workload, delays, faults, the fate of every attempt. `python -m simulator
--seed N` replays one; the same seed gives the same trace hash on every machine. Orchestrators run
their real shell over the memory adapters; hosts and functions are models of gpud and gpu_runner.
"""
