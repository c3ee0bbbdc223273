"""Pure: routing of events, the job machine, retry. No I/O, no clock, no randomness of its own."""
