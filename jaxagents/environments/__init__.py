"""Environments: pure functions `sample_task`, `reset` and `step` of one instance, wrappers, and adapters to suites."""
