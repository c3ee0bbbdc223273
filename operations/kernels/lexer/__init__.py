"""From the text of a kernel source to its expanded tokens."""
