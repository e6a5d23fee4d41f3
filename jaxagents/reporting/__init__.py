"""What a run shows: logs, progress, curves, tables, reports, transcripts and films."""
