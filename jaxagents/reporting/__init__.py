"""What a run leaves to look at: logs, progress, curves, tables, reports, transcripts and films."""
