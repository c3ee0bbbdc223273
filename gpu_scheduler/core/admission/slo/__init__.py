"""Promises: the options of a step, the frontier of a graph, the calendar of a device, the plan."""
