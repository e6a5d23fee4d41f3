"""Policies: parameters and inputs to distributions of actions."""
