"""Speed and learning, measured: timing, suites, and peers beside us."""
