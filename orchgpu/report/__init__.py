"""Report of an interval from the history: its figures (`summary`), and a page without scripts."""
