"""`python -m local_cloud.server`."""

from local_cloud.server.cli import main

main()
