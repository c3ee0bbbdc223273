"""Actions of the job machine, performed through the ports."""
