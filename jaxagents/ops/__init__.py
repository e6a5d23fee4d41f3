"""Ops: array mathematics without state: returns, advantages, credit, distributions, masks, statistics."""
