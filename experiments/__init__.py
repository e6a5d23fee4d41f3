"""The commands: mains that turn configs into runs."""
