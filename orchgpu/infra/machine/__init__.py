"""The first start of a machine of a stack: `python -m orchgpu.infra.machine machine.json`.

User data has installed this package and left the settings of the machine. `files` decides what is
in each file of the machine, without I/O; `start` does it over the port `MachineCloud`.
"""
