"""Time slices: whose turn it is on a shared device."""
