"""Benchmarks of speed and learning: timing, suites, and comparisons with other libraries."""
