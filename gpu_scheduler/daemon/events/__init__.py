"""Event stream: changes of the scheduler in a bounded ring, from which every reader reads."""
