"""Local alignment of proteins: FASTA, BLOSUM62, exact positions, searches of whole databases.

The operation is `operations.plugins.sequence_search`.
"""
