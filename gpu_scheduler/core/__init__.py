"""Decides who gets which device. Pure: events in, durable changes and actions out.

`machine.SchedulerMachine` is the only mutator; `events`, `changes` and `actions` are its words.
Knows no socket, file, clock or secret: those are the daemon's.
"""
