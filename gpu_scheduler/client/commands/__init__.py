"""The commands of `ssgm`."""
