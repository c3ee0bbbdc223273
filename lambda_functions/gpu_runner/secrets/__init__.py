"""The secrets of a function: read from their places, kept for a while, masked in what is logged."""
