"""The reports of this host: the port of its link, traces and metrics."""
