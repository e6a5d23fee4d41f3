"""Losses: objectives per element of policies, values, preferences, imitation and world models."""
