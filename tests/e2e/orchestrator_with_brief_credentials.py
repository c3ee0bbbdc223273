"""An orchestrator whose runs on hosts get the shortest credentials of AWS, as a program."""

from __future__ import annotations

import sys

from orchgpu.adapters.aws import credentials

if __name__ == "__main__":
    vars(credentials).update(DURATION_S=900)
    sys.argv = ["orchgpu", "orchestrate", *sys.argv[1:]]
    from orchgpu.cli import main

    main()
