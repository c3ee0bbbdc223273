"""Both production cores and the cloud model in one world, on virtual time, under faults.

A seed determines everything: workload, delays, faults, the outcome of every attempt. `python -m
simulator.faults --seed N` replays one. Orchestrators run their real loops over the memory adapters;
hosts and functions are models of gpud and gpu_runner.
"""
