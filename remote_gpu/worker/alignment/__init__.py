"""Local alignment of proteins: FASTA, BLOSUM62, exact positions, searches of whole databases.

The operation is `remote_gpu.worker.operations.sequence_search`.
"""
