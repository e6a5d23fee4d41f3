"""Data: trajectories in files, packed rows of tokens, replay buffers, and fixed data sets."""
