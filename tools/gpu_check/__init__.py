"""Every check and figure that needs an NVIDIA GPU, by one command, on a machine without a network.

    make gpu                                  all parts, pages into docs/gpu-runs
    python -m tools.gpu_check --dry-run       the parts, and the modules that each of them needs
    python -m tools.gpu_check --only NAME …   some of them
    python -m tools.gpu_check --resume        those that have not passed yet
    python -m tools.gpu_check --kind cpu      a rehearsal on this machine's CPU
    python -m tools.gpu_check.wheels FOLDER   collects the wheels that such a machine lacks

Every part is a module of `tools/gpu_check/parts`, run as a process with a time limit of its own.
The command needs Python 3.11 and nothing else; a part whose modules are not installed is left out,
and the page names them.

Exit status: 0 all parts passed; 1 a part failed, was left out for a missing module, or had no time;
2 wrong arguments; 7 no NVIDIA GPU on this machine; 130 interrupted, finished parts are kept.
"""
