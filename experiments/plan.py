"""Plans memory and speed of a language model: `python experiments/plan.py model=llama_7b slices=[v5ex16,h100x8]`."""

import json
from typing import Any

from jaxagents.training.interrupts import interrupts_at_once

with interrupts_at_once():
    from omegaconf import DictConfig, OmegaConf

    from jaxagents.training.command import command


@command("plan")
def main(config: DictConfig) -> None:
    """Prints a table and, as the last line on stdout, one JSON object; nothing is computed on a device."""
    # Imported here: help and mistakes in names come without jax.
    from hydra.utils import instantiate

    from jaxagents.reporting.tables import print_plan
    from jaxagents.training.planning import plan_devices

    network = instantiate(config.model.network)(vocab_size=config.vocab_size)
    optimizer = instantiate(config.optimizer)(1000)
    settings: Any = OmegaConf.to_container(config.work, resolve=True)
    slices = [config.slices] if isinstance(config.slices, str) else list(config.slices)
    accelerators: Any = OmegaConf.to_container(config.accelerators)
    rules: Any = OmegaConf.to_container(config.sharding.rules)
    rows = plan_devices(network, optimizer, slices, accelerators=accelerators, rules=rules, **settings)
    print_plan(f"{config.work.tokens} tokens, {network.features} features, {network.num_layers} layers", rows)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
