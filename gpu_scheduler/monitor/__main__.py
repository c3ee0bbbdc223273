"""`python -m gpu_scheduler.monitor` is `ssgm-monitor`."""

from gpu_scheduler.monitor.cli import main

if __name__ == "__main__":
    main()
