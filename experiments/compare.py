"""Draws runs side by side: `python experiments/compare.py paths=runs/a,runs/b`; settings: configs/compare.yaml."""

import json
import sys
from pathlib import Path

from omegaconf import DictConfig

from jaxagents.reporting.comparison import compare_runs, comparison_rows, draw_comparison, find_runs
from jaxagents.reporting.tables import print_table
from jaxagents.training.command import command, quote_lists


@command("compare")
def main(config: DictConfig) -> None:
    """Prints a table and writes a picture; the last line on stdout is one JSON object."""
    paths = list(config.paths or ())
    if not paths:
        raise ValueError("`paths` must name runs, or folders that hold some, got none; try paths=runs.")
    compared = compare_runs(find_runs(paths), config.metric)
    rows = comparison_rows(compared)
    print_table(config.metric, ("what differs", "seeds", "at the end", "worst", "best"), rows)
    picture = draw_comparison(config.picture or Path(paths[0]) / "comparison.png", compared, config.metric)
    final = {one.label: [float(value) for value in one.final] for one in compared}
    print(json.dumps({"picture": str(picture), "final": final}))


if __name__ == "__main__":
    sys.argv[1:] = quote_lists(sys.argv[1:], ("paths",))
    main()
