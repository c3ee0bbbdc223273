"""The picture of one system that all browsers share, and what each of them may see. Pure."""
