"""`python -m local_cloud.bridge`."""

from local_cloud.bridge.cli import main

main()
