"""The console: an HTTP server for people's browsers (`orchgpu web`).

`model/` is one in-memory picture of fleet, queue and jobs (pure), `reader.py` keeps it current from
one scheduler, `doors.py` asks for one browser, `routes/` is the API and `http/` what all its
requests share, `assets/` is the page.
"""
