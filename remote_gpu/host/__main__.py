"""`python -m remote_gpu.host` is `gpud`."""

from remote_gpu.host.cli import main

if __name__ == "__main__":
    main()
