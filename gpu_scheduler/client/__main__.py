"""`python -m gpu_scheduler.client` is `ssgm`."""

from gpu_scheduler.client.cli import main

if __name__ == "__main__":
    main()
