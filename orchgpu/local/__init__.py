"""The local system: cloud, scheduler, two GPU hosts and an orchestrator as processes here.

Owns the life of those processes and the folder they live in. They are started by command, never by
import: what runs here is what a real deployment starts. One supervisor process per system starts
them in order, watches them and stops them in order; commands talk to it by its folder alone.
"""
