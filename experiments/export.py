"""Writes a trained agent for others: `python experiments/export.py path=runs/grpo_frozenlake/... folder=agent`."""

import json
import sys
from functools import partial

from jaxagents.training.interrupts import interrupts_at_once

with interrupts_at_once():
    from omegaconf import DictConfig

    from jaxagents.training.command import command


@command("export")
def main(config: DictConfig) -> None:
    """Writes the folder; the last line on stdout is one JSON object."""
    # Imported here: help and mistakes in names come without jax.
    from jaxagents.training.config import DevicesConfig, make_section
    from jaxagents.training.export import export_run
    from jaxagents.training.launch import prepare_backend
    from jaxagents.training.setting_types import require_arguments

    require_arguments(config, export_run, optional=("path",), positive=("max_file_bytes",))
    prepare_backend(make_section(DevicesConfig, "devices", config.devices))
    written = export_run(
        config.path,
        config.folder,
        form=config.form,
        which=config.which,
        step=config.step,
        stage=config.stage,
        seed_index=config.seed_index,
        max_file_bytes=int(config.max_file_bytes),
        on_fallback=partial(print, file=sys.stderr),
    )
    print(json.dumps(written))


if __name__ == "__main__":
    main()
