"""What we are measured against, in the same process."""
