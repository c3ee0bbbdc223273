"""A system of 10,000 devices and 100,000 jobs, for benchmarks and for the tests of the page."""
