"""The documentation: pages that are written by hand, and those that are generated from configs and docstrings."""
