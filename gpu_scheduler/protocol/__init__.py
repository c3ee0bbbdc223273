"""Messages between the scheduler, its clients and its hosts, and the changes of its journal.

Pure: no socket, no clock. Daemon, core, clients and hosts import it; it imports none of them.
"""
