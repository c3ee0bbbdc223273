"""The pure core of the scheduler: events in, durable changes and actions out.

`machine.SchedulerMachine` is the only mutator; `events`, `changes` and `actions` are its types.
Sockets, files, clocks and secrets belong to the daemon.
"""
