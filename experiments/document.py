"""Builds the documentation: `python experiments/document.py`; settings: configs/document.yaml."""

import json
from pathlib import Path

from jaxagents.training.interrupts import interrupts_at_once

with interrupts_at_once():
    from omegaconf import DictConfig

    from jaxagents.documentation.site import build_site
    from jaxagents.training.command import command


@command("document")
def main(config: DictConfig) -> None:
    """Builds the site; the last line on stdout is one JSON object with its front page."""
    page = build_site(Path(__file__).resolve().parents[1], Path(config.folder).resolve())
    print(json.dumps({"documentation": str(page)}))


if __name__ == "__main__":
    main()
