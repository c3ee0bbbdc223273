"""Time slices of shared devices."""
