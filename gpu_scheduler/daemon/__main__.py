"""`python -m gpu_scheduler.daemon` is `ssgmd`."""

from gpu_scheduler.daemon.cli import main

if __name__ == "__main__":
    main()
