"""Trains agents in JAX, in loops that compile end to end."""
