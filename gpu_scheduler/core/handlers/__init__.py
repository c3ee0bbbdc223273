"""The handlers of events: one file for each party, and for what it asks about."""
