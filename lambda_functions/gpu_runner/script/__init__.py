"""The user's programs: which command, which environment, and the processes they run in."""
