"""Lambda: functions and their execution environments."""
