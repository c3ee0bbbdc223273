"""The sandbox that all runs of one environment share: private folders, hidden credentials."""
