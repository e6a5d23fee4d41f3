"""Draws runs side by side: `python experiments/compare.py paths=runs/a,runs/b`; settings: configs/compare.yaml."""

import json
from pathlib import Path

from jaxagents.training.interrupts import interrupts_at_once

with interrupts_at_once():
    from omegaconf import DictConfig

    from jaxagents.training.command import command


@command("compare", lists=("paths",))
def main(config: DictConfig) -> None:
    """Prints a table and writes a picture; the last line on stdout is one JSON object."""
    # Imported here: help and mistakes in names come without jax.
    from jaxagents.reporting.comparison import (
        compare_runs,
        comparison_rows,
        draw_comparison,
        find_runs,
        tell_differences,
        write_metrics_csv,
    )
    from jaxagents.reporting.tables import print_table

    paths = list(config.paths or ())
    if not paths:
        raise ValueError("`paths` must name runs, or folders that hold some, got none; try paths=runs.")
    folders = find_runs(paths)
    compared = compare_runs(folders, config.metric)
    head = ("run", "seeds", "steps", "mean, 95 %", "worst", "best")  # What differs is too long for a column.
    print_table(config.metric, head, comparison_rows(compared))
    for line in tell_differences(compared):
        print(line)
    picture = draw_comparison(config.picture or Path(paths[0]) / "comparison.png", compared, config.metric)
    final = {run: [float(value) for value in values] for one in compared for run, values in one.finals.items()}
    written = {} if config.csv is None else {"csv": str(write_metrics_csv(config.csv, folders))}
    print(json.dumps({"picture": str(picture), **written, "final": final}))


if __name__ == "__main__":
    main()
