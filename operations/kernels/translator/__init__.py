"""From tokens to a source for compilers in which every memory access is checked."""
