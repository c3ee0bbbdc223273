"""Commands that move objects: put, get, ls, run."""
