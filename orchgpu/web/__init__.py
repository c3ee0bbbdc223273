"""The console: an HTTP server for people's browsers (`orchgpu web`).

`model/` is one in-memory picture of fleet, queue and jobs (pure), `feed.py` keeps it current from
one scheduler, `work/` reads and changes the cloud, `http/` serves it all, `assets/` is the page.
"""
