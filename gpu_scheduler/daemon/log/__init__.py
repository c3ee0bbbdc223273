"""The log behind a journal: items with consecutive numbers, each written by exactly one writer.

`port.py` is the contract, `engines/` holds one module per kind of storage, `writer.py` and
`reader.py` are the two uses of a log. The journal on top is `daemon/journal/log_journal.py`.
"""
