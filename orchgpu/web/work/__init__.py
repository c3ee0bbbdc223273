"""Work in the cloud for one browser: job stories, outputs, letters, functions, uploads, changes.

The cloud's client is synchronous: each piece of work is one call in a thread (`CloudDoor`).
"""
