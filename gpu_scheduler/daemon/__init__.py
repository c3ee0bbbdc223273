"""ssgmd: the scheduler's core behind a journal and two endpoints (JSON lines and HTTP).

One process, one writer: the state folder is locked. A grant is durable before it is answered.
"""
