"""Rollouts: experience of policies in environments, evaluation, opponents, and simulators on the host."""
