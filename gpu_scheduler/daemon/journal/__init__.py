"""The journal of ssgmd: format, appending, reading, repair."""
