"""The HTTP API for programs, under `/v1`: jobs by upload, their states, lines and outputs.

`model.py` has its typed values, from which `openapi.py` describes it; `callers.py` decides who
calls and how often, `submitting.py` turns a request into one input, `jobs.py` and `outputs.py`
answer about jobs. All of it stands on what the console and the commands use.
"""
