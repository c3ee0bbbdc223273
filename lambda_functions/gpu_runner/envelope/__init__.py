"""The envelope of an attempt: its two archive forms and the documents in it."""
