"""Papers as experiments: their claims, arms, runs and verdicts."""
