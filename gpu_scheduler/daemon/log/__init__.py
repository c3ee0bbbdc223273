"""The log behind a journal: items with consecutive numbers, each written by exactly one writer.

`port.py` is the contract, `engines/` holds one module per kind of storage (`file` with its form in
`records.py` and `sync_marker.py`), `writer.py` puts the items of one run. The journal on top is
`daemon/journal`: the chain of checks, one reader, one repair.
"""
