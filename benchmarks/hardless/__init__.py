"""HARDLESS' experiment (Werner, Schirmer 2022) through the real daemons, on emulated devices."""
