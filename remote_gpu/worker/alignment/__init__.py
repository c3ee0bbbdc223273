"""Local alignment of proteins: FASTA, BLOSUM62, exact positions, a database searched as a whole.

Plain functions and values; `remote_gpu.worker.operations.sequence_search` makes them an operation.
"""
