"""Exports a run: as a folder for `transformers` or `peft`, or as a compiled policy that needs no other library."""

import inspect
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hydra.utils import instantiate
from omegaconf import OmegaConf

from jaxagents.language.checkpoints.families import describe
from jaxagents.language.checkpoints.peft import write_adapter
from jaxagents.language.checkpoints.read import read_decoder, read_params
from jaxagents.language.checkpoints.tensors import open_file, read_json
from jaxagents.language.checkpoints.write import write_checkpoint
from jaxagents.networks.adapters import Adapter, combine
from jaxagents.networks.decoder import Decoder
from jaxagents.training.acting import history_read, initial_carry, make_act, mask_shape
from jaxagents.training.load import LoadedStage, load_stage
from jaxagents.training.speaking import tokens_to_answer
from jaxagents.training.stages import stage_configs
from jaxagents.types import Array, Environment, LanguagePolicy, Params, Policy

FORMS = ("auto", "merged", "peft", "stablehlo")
TOKENIZER_CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
PROGRAM, WEIGHTS, SIGNATURE = "policy.stablehlo", "weights.safetensors", "signature.json"


class _Agent(NamedTuple):
    """A language agent in parts; the adapter and its parameters are None if it has none."""

    decoder: Decoder
    base: Params
    adapter: Adapter | None
    own: Any
    source: Path | None


def export_run(
    path: str | Path,
    folder: str | Path,
    *,
    form: str = "auto",
    which: str = "best",
    step: int | None = None,
    stage: str | None = None,
    seed_index: int = 0,
    max_file_bytes: int = 5 * 10**9,
    on_fallback: Callable[[str], Any] = print,
) -> dict[str, str]:
    """Writes the policy of a run.

    Args:
        path: run directory.
        folder: folder to write to; it is created.
        form: "merged": a checkpoint that `transformers` loads; "peft": the adapter alone, and its base only if that is
            no longer the checkpoint that the run started from, or the tokenizer has marks that the checkpoint has no
            rows for; "stablehlo": see `write_policy`; "auto": merged for language agents, stablehlo for others. An
            agent with an adapter per seat becomes a folder per seat, `folder/seat_0` and so on, and one base for all.
        which: see `load_stage`.
        step: see `load_stage`.
        stage: see `load_stage`.
        seed_index: index of the copy to export, if the run has several seeds.
        max_file_bytes: see `write_checkpoint`.
        on_fallback: see `load_stage`.

    Returns:
        `{"form", "folder"}`; for peft also `base`, the folder of the checkpoint that the adapter belongs to; with a
        tokenizer of `transformers` also `chat_template`, see `_write_tokenizer`.

    Raises:
        ValueError: the form is unknown, or does not fit the policy; see `load_stage`.
    """
    if form not in FORMS:
        raise ValueError(f"`form` must be one of {', '.join(FORMS)}, got {form!r}.")
    folder = Path(folder)
    loaded = load_stage(path, which, step, stage=stage, on_fallback=on_fallback)
    params = jax.tree.map(lambda leaf: leaf[seed_index], loaded.params) if loaded.num_seeds else loaded.params
    policy: Any = loaded.stage.policy
    speaks = isinstance(policy, LanguagePolicy)
    form = ("merged" if speaks else "stablehlo") if form == "auto" else form
    if speaks == (form == "stablehlo"):
        fitting = "merged or peft" if speaks else "stablehlo"
        raise ValueError(f"`form` must be {fitting} for the policy of {path}, got {form}; try auto.")
    if form == "stablehlo":
        write_policy(folder, policy, params, loaded.stage.environment)
        return {"form": form, "folder": str(folder.resolve())}
    written, agents = {"form": form, "folder": str(folder.resolve())}, _parts(loaded, params)
    if form == "peft":
        base = _base_of(next(iter(agents.values())), folder / "base", max_file_bytes)
        written["base"] = str(base)
    for name, agent in agents.items():
        if form == "merged":
            merged = agent.base if agent.adapter is None else agent.adapter.merge(agent.base, agent.own)
            _write_checkpoint(folder / name, agent, merged, max_file_bytes)
        else:
            _write_peft(folder / name, agent, base)
        written |= _write_tokenizer(folder / name, policy, agent.source)
    return written


def write_policy(folder: Path, policy: Policy, params: Params, environment: Environment) -> None:
    """Writes a policy as a compiled program for any batch size, on CPUs, CUDA and TPUs.

    The program takes the most probable action; its weights are arguments, stored in a separate file. If the world masks
    actions, the mask is an argument, too, and so is the last reward if the policy reads it.

    Args:
        folder: folder to write to; it is created.
        policy: policy that acts.
        params: parameters of the policy.
        environment: environment that defines the spaces.
    """
    from jax import export  # Needs flatbuffers, an optional dependency.
    from safetensors.numpy import save_file

    act, masks = make_act(policy, environment), mask_shape(environment)
    agents = (environment.num_agents,) if environment.num_agents else ()
    (batch,) = export.symbolic_shape("batch")
    leaves, tree = jax.tree.flatten(params)
    space, space_tree = jax.tree.flatten(environment.observation_space)
    carry, carry_tree = jax.tree.flatten(jax.eval_shape(lambda: initial_carry(policy, environment, (1,))))
    further: dict[str, Any] = {} if masks is None else {"action_mask": (masks, bool)}
    if "previous_reward" in history_read(policy, environment):
        further["reward"] = (agents, jnp.float32)

    def program(weights: list[Array], observation: list[Array], carry: list[Array], first: Array, *others: Array):
        action, carry = act(
            jax.tree.unflatten(tree, weights),
            jax.tree.unflatten(space_tree, observation),
            jax.tree.unflatten(carry_tree, carry),
            first,
            **dict(zip(further, others, strict=True)),
        )
        return action, jax.tree.leaves(carry)

    def batched(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch, *shape), dtype)

    arguments = (
        [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves],
        [batched((*agents, *one.shape), one.dtype) for one in space],
        [batched(leaf.shape[1:], leaf.dtype) for leaf in carry],
        batched((), bool),
        *(batched(*form) for form in further.values()),
    )
    exported = export.export(jax.jit(program), platforms=("cpu", "cuda", "tpu"))(*arguments)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PROGRAM).write_bytes(exported.serialize())
    save_file({f"{i:05d}": np.asarray(leaf) for i, leaf in enumerate(leaves)}, folder / WEIGHTS)
    signature = {
        "arguments": ["weights", "observation", "carry", "first", *further],
        "results": ["action", "carry"],
        "carry": [[list(leaf.shape[1:]), str(leaf.dtype)] for leaf in carry],
        "shapes": {name: [list(shape), np.dtype(dtype).name] for name, (shape, dtype) in further.items()},
    }
    (folder / SIGNATURE).write_text(json.dumps(signature, indent=2) + "\n")


def load_program(folder: str | Path) -> Callable[..., tuple[Array, list[Array]]]:
    """Loads the program that `write_policy` wrote; neither the network nor the environment is needed.

    Args:
        folder: folder of the policy.

    Returns:
        `(observation, carry=None, first=None, *, action_mask=None, reward=None) -> (action, carry)`, all with a leading
        batch axis; `observation` is an array, or the list of its leaves. Programs of worlds with masks need the mask,
        and those that read the reward of the last action need it after the first step.

    Raises:
        ValueError: a file is missing; or, in a call, an argument is missing or is not an argument of the program.
    """
    from jax import export

    folder = Path(folder)
    signature, stored = read_json(folder / SIGNATURE), open_file(folder / WEIGHTS)
    if not (folder / PROGRAM).is_file():
        raise ValueError(f"`folder` must hold {PROGRAM}, got none at {folder}; try experiments/export.py.")
    exported = export.deserialize(bytearray((folder / PROGRAM).read_bytes()))
    weights = [jnp.asarray(stored[name]) for name in sorted(stored)]

    def act(
        observation: Any,
        carry: list[Array] | None = None,
        first: Any = None,
        *,
        action_mask: Any = None,
        reward: Any = None,
    ) -> tuple[Array, list[Array]]:
        observation = [jnp.asarray(leaf) for leaf in (observation if isinstance(observation, list) else [observation])]
        size = observation[0].shape[0]
        first = jnp.broadcast_to(carry is None if first is None else first, (size,))
        given, shapes = {"action_mask": action_mask, "reward": reward}, signature.get("shapes", {})
        if carry is None and reward is None and "reward" in shapes:
            given["reward"] = jnp.zeros((size, *shapes["reward"][0]))
        for name, value in given.items():
            if (value is None) == (name in shapes):
                wanted = f"given, {[size, *shapes[name][0]]}," if name in shapes else "left out"
                raise ValueError(f"`{name}` must be {wanted} by what {folder / SIGNATURE} says, got {np.shape(value)}.")
        others = [jnp.asarray(given[name], dtype) for name, (_, dtype) in shapes.items()]
        if carry is None:
            carry = [jnp.zeros((size, *shape), dtype) for shape, dtype in signature["carry"]]
        return exported.call(weights, observation, carry, first, *others)

    return act


def _parts(loaded: LoadedStage, params: Params) -> dict[str, _Agent]:
    """Splits a language agent into parts: one without a name, or one for every seat if each has its own adapter."""
    policy: Any = loaded.stage.policy
    init_cache = inspect.unwrap(policy.model.init_cache, stop=lambda function: hasattr(function, "__self__"))
    decoder = getattr(init_cache, "__self__", None)
    if type(decoder) is not Decoder:
        raise ValueError(
            f"`model` must be a family of checkpoints to be exported, got {type(decoder).__name__}; try "
            "model=huggingface, llama, qwen or gpt2."
        )
    config = stage_configs(loaded.config)[loaded.stage.name]
    source = config["model"].get("path")
    source = None if source is None else Path(source).expanduser()
    if set(params) != {"base", "adapter"}:
        return {"": _Agent(decoder, params, None, None, source)}
    learner = config["learner"]
    while "adapter" not in learner:
        learner = learner["inner"]
    own = params["adapter"] if "adapters" in learner else {"": params["adapter"]}
    agents = {}
    for name in own:
        node = learner.get("adapters", {}).get(name, learner["adapter"])
        adapter = instantiate(OmegaConf.create(node), _convert_="all")
        adapter = combine(adapter) if isinstance(adapter, Mapping) else adapter
        agents[name] = _Agent(decoder, params["base"], adapter, own[name], source)
    return agents


def _write_checkpoint(folder: Path, agent: _Agent, params: Params, max_file_bytes: int) -> None:
    config = describe(agent.decoder) if agent.source is None else read_json(agent.source / "config.json")
    write_checkpoint(folder, agent.decoder, params, config, max_file_bytes=max_file_bytes, source=agent.source)


def _base_of(agent: _Agent, folder: Path, max_file_bytes: int) -> Path:
    """Returns the folder of the adapted checkpoint; if there is none yet, it is written to `folder`."""
    _adapter_of(agent)  # Refuses an agent without an adapter before anything is written.
    if agent.source is not None and _is_checkpoint(agent, agent.source):
        return agent.source.resolve()
    _write_checkpoint(folder, agent, agent.base, max_file_bytes)
    return folder.resolve()


def _adapter_of(agent: _Agent) -> Adapter:
    if agent.adapter is None:
        raise ValueError("`form` must be merged for an agent without an adapter, got peft; try learner=adapted.")
    return agent.adapter


def _write_peft(folder: Path, agent: _Agent, base: Path) -> None:
    """Writes the adapter of a base; it cannot hold a value head."""
    own, description = agent.own, _adapter_of(agent).description
    if description["kind"] == "combined":
        kinds = {name: one["kind"] for name, one in description["adapters"].items()}
        heads = [name for name, one in description["adapters"].items() if one.get("pattern") == "value_layer/"]
        others = [name for name in kinds if name not in heads]
        if len(others) != 1:
            raise ValueError(f"`adapter` must be one adapter, and a value head, for a folder of peft, got {kinds}.")
        own, description = own[others[0]], description["adapters"][others[0]]
    write_adapter(folder, agent.decoder, description, own, base=base)


def _is_checkpoint(agent: _Agent, folder: Path) -> bool:
    """Tells whether the frozen parameters are those of a checkpoint, with a row for every token.

    An earlier stage may have changed them, and a tokenizer may have marks that the checkpoint does not know.
    """
    if read_decoder(folder).vocab_size < agent.decoder.vocab_size:
        return False
    saved = read_params(folder, agent.decoder)["params"]
    own = {name: leaf for name, leaf in agent.base["params"].items() if name != "value_layer"}
    same = jax.tree.map(lambda a, b: a.shape == b.shape and bool(jnp.all(a == b)), own, saved)
    return all(jax.tree.leaves(same))


def _write_tokenizer(folder: Path, policy: LanguagePolicy, source: Path | None) -> dict[str, str]:
    """Writes a tokenizer of `tokenizers` with the marks that were added to it; others have no exchange format.

    Returns:
        Which `chat_template` was written: that of the checkpoint if the run was trained through it, else one of the
            marks that it was trained with, or none if `transformers` would make other tokens of it.
    """
    header, _, payload = policy.tokenizer.data.partition(b"\n")
    if json.loads(header)["kind"] != "huggingface":
        return {}
    (folder / "tokenizer.json").write_bytes(payload)
    given = None if source is None else source / TOKENIZER_CONFIG
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    config = config if given is None or not given.is_file() else dict(read_json(given))
    template = None if source is None else source / TEMPLATE
    if getattr(policy.lexicon, "chat", None) is not None:
        if template is not None and template.is_file():
            shutil.copy(template, folder / TEMPLATE)
        _write_json(folder / TOKENIZER_CONFIG, config)
        return {"chat_template": "of the checkpoint"}
    (folder / TEMPLATE).unlink(missing_ok=True)
    _write_json(folder / TOKENIZER_CONFIG, config | {"chat_template": _template_of_marks(policy, payload)})
    if _is_as_learned(folder, policy):
        return {"chat_template": "of the marks that the run was trained with"}
    config.pop("chat_template", None)
    _write_json(folder / TOKENIZER_CONFIG, config)
    return {"chat_template": "none, since the run was not trained through one (learner=chat)"}


def _template_of_marks(policy: LanguagePolicy, tokenizer: bytes) -> str:
    """Returns the chat template of the format of transcripts, see `data.streams.encode`."""
    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(tokenizer.decode())
    token = {name: json.dumps(backend.id_to_token(i)) for name, i in policy.tokenizer.marks.items()}
    seen = "'\\n' if not loop.first and loop.previtem.role == 'user' else " + token["observation"]
    return (
        "{%- for message in messages -%}"
        "{%- if message.role == 'system' -%}{{ message.content }}"
        "{%- elif message.role == 'user' -%}{{ " + seen + " }}{{ message.content }}"
        "{%- else -%}{{ " + token["act"] + " }}{{ message.content }}{{ " + token["end"] + " }}{%- endif -%}"
        "{%- endfor -%}{%- if add_generation_prompt -%}{{ " + token["act"] + " }}{%- endif -%}"
    )


def _is_as_learned(folder: Path, policy: LanguagePolicy) -> bool:
    """Tells whether `transformers` makes the same tokens of conversations that the run was trained with."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    dialogue = [{"role": "user", "content": "What is 3 + 1?"}, {"role": "assistant", "content": "It is 4."}]
    dialogue += [{"role": "user", "content": " Sure?\n"}]
    rules = {"role": "system", "content": "Be brief."}
    for messages in (dialogue[:1], dialogue, [rules, *dialogue]):
        made: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
        if list(made["input_ids"]) != tokens_to_answer(policy, messages):
            return False
    return True


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
