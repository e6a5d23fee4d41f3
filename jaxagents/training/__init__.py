"""Training: configs to programs, the loop, devices, checkpoints, evaluation, and what is loaded of a run."""
