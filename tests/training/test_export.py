"""What a run leaves to others is loaded back by them, and says the same."""

import json
import shutil
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.data.messages import from_messages
from jaxagents.data.streams import encode
from jaxagents.environments import tmaze
from jaxagents.language.checkpoints.read import read_decoder, read_params
from jaxagents.language.checkpoints.tensors import open_tensors
from jaxagents.language.checkpoints.write import write_checkpoint
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.tokenizers import from_huggingface
from jaxagents.networks.adapters import lora
from jaxagents.networks.recurrent import GRU
from jaxagents.networks.torsos import MLP
from jaxagents.policies.actor_critic import as_policy, make_policy
from jaxagents.policies.contexts import score_tokens, to_rows, unfold
from jaxagents.policies.history import make_history_actor_critic
from jaxagents.training.acting import make_act
from jaxagents.training.build import build, resolve
from jaxagents.training.composition import compose as compose_run
from jaxagents.training.export import (
    _Agent,
    _base_of,
    _write_peft,
    _write_tokenizer,
    export_run,
    load_program,
    write_policy,
)
from jaxagents.training.launch import run
from jaxagents.training.load import load_policy
from jaxagents.training.speaking import tokens_to_answer
from jaxagents.types import LanguagePolicy
from tests import ROOT
from tests.fakes import byte_pairs

OFF = ("devices.compilation_cache=null", "logging.tensorboard=false", "logging.report=false")
LAKE = ("world=frozenlake", "algorithm=grpo", "quick=true", "collector.num_groups=4", "collector.group_size=4")
SIZES = {
    "vocab_size": 96,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
ADAPTED = (
    *("learner=adapted", "adapter@learner.adapter=lora_with_critic", "learner.adapter.lora.rank=2"),
    *("optimizer.learning_rate=0.05", "learner.inner.reference=true", "model.value_head=true"),
)


def train(folder, *overrides):
    config = compose_run(ROOT / "configs", *OFF, *overrides)
    return run(config, folder)["run_dir"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch = pytest.importorskip("torch", reason="needs the extra hf: PyTorch writes the checkpoint")
    transformers = pytest.importorskip("transformers", reason="needs the extra hf: transformers writes the checkpoint")
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("llama")
    words = {"vocab_size": 20}  # Of the lake, and marks: there is no tokenizer in the folder.
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES | words)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def adapted_run(checkpoint, tmp_path_factory):
    """Trains LoRA by GRPO on lakes, from a Llama that `transformers` wrote, as it came."""
    model = ("model=huggingface", "tokenizer=word", f"model.path={checkpoint}", "model.dtype=float32", "stages=[]")
    return train(tmp_path_factory.mktemp("run") / "run", *LAKE, *model, *ADAPTED)


def own_logits(run_dir, tokens):
    loaded = load_policy(run_dir, "last")
    model = loaded.policy.model
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((tokens.shape[1],) * 2, bool)), (*tokens.shape, tokens.shape[1]))
    hidden = model.apply(loaded.params, jnp.asarray(tokens), positions=positions, mask=mask)
    return loaded, np.asarray(model.logits(loaded.params, hidden))


@pytest.mark.slow
def test_an_adapter_of_grpo_is_loaded_by_transformers_and_peft(checkpoint, adapted_run, tmp_path):
    import torch
    import transformers

    peft = pytest.importorskip("peft", reason="needs the extra hf: peft loads the adapter")
    loaded, logits = own_logits(adapted_run, np.arange(18).reshape(2, 9))
    assert set(loaded.params) == {"base", "adapter"}
    base = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    export_run(adapted_run, tmp_path / "merged", which="last")
    export_run(adapted_run, tmp_path / "peft", form="peft", which="last")
    tokens = torch.arange(18).reshape(2, 9)
    with torch.no_grad():
        merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(tokens).logits.numpy()
        before = base(tokens).logits.numpy()
        adapted = peft.PeftModel.from_pretrained(base, tmp_path / "peft")(tokens).logits.numpy()
    written = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert written["base_model_name_or_path"] == str(checkpoint)
    assert np.abs(logits - before).max() > 1e-3  # Something was learned.
    np.testing.assert_allclose(merged, logits, atol=1e-5)
    np.testing.assert_allclose(adapted, logits, atol=1e-5)
    frozen = loaded.params["base"]["params"]["layers"]["attention"]["query"]["kernel"]
    untouched = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    wanted = untouched.model.layers[1].self_attn.q_proj.weight.detach().numpy().T
    np.testing.assert_array_equal(frozen[1], wanted)


@pytest.mark.exhaustive
def test_what_the_adapter_of_a_seat_says_has_the_same_probability_in_peft(tmp_path):
    torch = pytest.importorskip("torch", reason="needs the extra hf: PyTorch loads the adapters")
    peft = pytest.importorskip("peft", reason="needs the extra hf: peft loads the adapters")
    import transformers

    torch.manual_seed(0)
    sizes = transformers.LlamaConfig(**SIZES | {"vocab_size": 37})  # Words of the game, and marks.
    transformers.LlamaForCausalLM(sizes).save_pretrained(tmp_path / "llama")
    game = ("world=text_kuhn", "algorithm=sft", "quick=true", "evaluation=dialogue")
    model = (
        "model=huggingface",
        "tokenizer=word",
        f"model.path={tmp_path / 'llama'}",
        "model.dtype=float32",
        "model.remat=false",
    )
    learner = ("learner@warm_start.learner=seats", "learner@warm_start.learner.inner=supervised")
    quiet = ("logging.transcripts=false", "logging.curves=false", "warm_start.learner.optimizer.learning_rate=0.05")
    run_dir = train(tmp_path / "run", *game, *model, *learner, *quiet)
    export_run(run_dir, tmp_path / "peft", form="peft", which="last")
    export_run(run_dir, tmp_path / "merged", form="merged", which="last")
    loaded = load_policy(run_dir, "last")
    own = loaded.params["adapter"]
    assert all(np.any(leaf["b"]) for one in own.values() for leaf in one.values())  # Something was learned.

    def load(name):
        base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
        merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged" / name)
        return peft.PeftModel.from_pretrained(base, tmp_path / "peft" / name), merged

    theirs = [load(name) for name in ("seat_0", "seat_1")]
    demonstrate = make_demonstrations(loaded.environment, loaded.policy)
    episode = jax.jit(demonstrate)(jax.random.key(1), jnp.arange(4, dtype=jnp.int32))
    scored = jax.jit(partial(score_tokens, loaded.policy.model, layout=episode.layout))(loaded.params, to_rows(episode))
    wanted, episode = unfold(episode.layout, scored.log_prob), jax.device_get(episode)
    assert {int(seat) for seat in episode.agent[episode.action_mask]} == {0, 1}
    for row, turn in np.argwhere(episode.valid):
        mask, acted = episode.token_mask[row, turn], episode.action_mask[row, turn]
        tokens = torch.as_tensor(episode.tokens[row, turn][mask])[None].long()
        for model_of_seat in theirs[episode.agent[row, turn, 0]]:
            with torch.no_grad():
                log_probs = torch.log_softmax(model_of_seat(tokens).logits[0, :-1], -1)
            log_prob = log_probs[np.arange(mask.sum() - 1), tokens[0, 1:]].numpy()
            np.testing.assert_allclose(log_prob[acted[mask][1:]], np.asarray(wanted[row, turn])[acted], atol=1e-4)
    go_on = [f"+adapter@warm_start.learner.adapters.seat_{n}=peft" for n in range(2)]
    go_on += [f"warm_start.learner.adapters.seat_{n}.path={tmp_path / 'peft' / f'seat_{n}'}" for n in range(2)]
    stage = build(resolve(compose_run(ROOT / "configs", *OFF, *game, *model, *learner, *go_on))).stages[0]
    start = stage.runner.params(stage.runner.init(0))
    jax.tree.map(np.testing.assert_array_equal, start["adapter"], own)


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """Returns a folder with a tokenizer of bytes and a chat template."""
    transformers = pytest.importorskip("transformers", reason="needs the extra hf: transformers writes the tokenizer")
    backend = byte_pairs(256)
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>")
    tokenizer.chat_template = CHATML
    folder = tmp_path_factory.mktemp("spoken")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def instructed(spoken):
    """Returns the folder of a random Llama with this tokenizer."""
    torch = pytest.importorskip("torch", reason="needs the extra hf: PyTorch writes the checkpoint")
    import transformers

    folder, tokenizer = spoken, transformers.AutoTokenizer.from_pretrained(spoken)
    torch.manual_seed(0)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    # Padded, as those of public checkpoints.
    config = transformers.LlamaConfig(**SIZES | {"vocab_size": 264}, eos_token_id=end, bos_token_id=None)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def policy_of(folder, chat=None):
    """Returns a policy with the tokenizer of a folder, and the marks that it lacks."""
    tokenizer = from_huggingface((), folder, add_special_tokens=True)
    return LanguagePolicy(model=None, tokenizer=tokenizer, lexicon=SimpleNamespace(chat=chat), layout=None)


SAID = [
    {"role": "user", "content": "3+1?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "Sure?"},
]


@pytest.mark.parametrize("source", [True, False])
@pytest.mark.parametrize("system", [True, False])
def test_a_run_of_marks_is_exported_with_a_template_of_its_marks(spoken, tmp_path, source, system):
    import transformers

    for file in spoken.iterdir() if source else ():  # As of the checkpoint, in whose format the run has not learned.
        shutil.copy(file, tmp_path)
    policy = policy_of(spoken)
    written = _write_tokenizer(tmp_path, policy, spoken if source else None)
    assert written == {"chat_template": "of the marks that the run was trained with"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    turns = [{"role": "system", "content": "Be kind."}, *SAID] if system else SAID
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    end = tokenizer.convert_ids_to_tokens(policy.tokenizer.marks["end"])
    wanted = f"<|observation|>3+1?<|act|>4{end}<|observation|>Sure?<|act|>"
    assert text == ("Be kind." if system else "") + wanted
    tokens = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert tokens == tokens_to_answer(policy, turns)
    whole = [*turns, {"role": "assistant", "content": "Yes."}]
    (learned,) = encode(from_messages(whole, id="whole"), policy.tokenizer)
    assert tokenizer.apply_chat_template(whole, return_dict=True)["input_ids"] == learned.tokens


def test_a_run_of_the_template_is_exported_with_it(spoken, tmp_path):
    import transformers

    written = _write_tokenizer(tmp_path, policy_of(spoken, chat="of the folder"), spoken)
    assert written == {"chat_template": "of the checkpoint"}
    assert transformers.AutoTokenizer.from_pretrained(tmp_path).chat_template == CHATML


def test_no_template_is_written_that_would_make_other_tokens(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs the extra hf: transformers writes the tokenizer")
    import tokenizers

    # Words begin with a sign for a space, which `transformers` writes at the start of the whole alone.
    alphabet = sorted({character for turns in SAID for character in turns["content"] + "What is It .?\n"} | {"\u2581"})
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=99, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([""], trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(tmp_path / "base")
    (tmp_path / "agent").mkdir()
    written = _write_tokenizer(tmp_path / "agent", policy_of(tmp_path / "base"), tmp_path / "base")
    assert written["chat_template"].startswith("none, since the run was not trained through one")
    assert not transformers.AutoTokenizer.from_pretrained(tmp_path / "agent").chat_template


@pytest.mark.exhaustive
def test_chats_of_a_file_are_learned_in_the_format_of_the_template(instructed, tmp_path):
    import torch
    import transformers

    chat = [{"role": "user", "content": "where?"}, {"role": "assistant", "content": "left"}]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    run_dir = train(
        tmp_path / "run",
        *("world=frozenlake", "algorithm=sft", "evaluation.num_episodes=2"),
        *("learner@warm_start.learner=chat", "learner@warm_start.learner.inner=supervised"),
        *("model=huggingface", "tokenizer=word", f"model.path={instructed}", "model.dtype=float32"),
        *("collector@warm_start.collector=transcripts", f"warm_start.collector.paths={tmp_path / 'chats.jsonl'}"),
        *("warm_start.collector.num_rows=4", "warm_start.collector.row_length=64", "evaluation.every_steps=400"),
        *("warm_start.training.total_steps=400", "warm_start.learner.optimizer.learning_rate=0.02"),
    )
    assert export_run(run_dir, tmp_path / "agent", which="last")["chat_template"] == "of the checkpoint"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "agent")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "agent")
    prompt = tokenizer.apply_chat_template(chat[:1], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        text = model.generate(**prompt, max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert tokenizer.decode(text[0, prompt["input_ids"].shape[1] :]) == "left<|im_end|>"


@pytest.mark.parametrize("added", [0, 3])
def test_an_adapter_for_marks_that_the_checkpoint_lacks_comes_with_its_base(tmp_path, added):
    pytest.importorskip("safetensors", reason="needs the extra hf: checkpoints are files of safetensors")
    sizes = {**SIZES, "model_type": "llama", "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    decoder = read_decoder(tmp_path)
    tokens = jnp.zeros((1, 1), jnp.int32)
    params = decoder.init(jax.random.key(0), tokens, tokens, jnp.ones((1, 1, 1), bool), method="everything")
    (tmp_path / "config.json").unlink()
    write_checkpoint(tmp_path / "llama", decoder, params, sizes)
    larger = read_decoder(tmp_path / "llama", 96 + added)
    adapter = lora(rank=2)
    base = read_params(tmp_path / "llama", larger)
    agent = _Agent(larger, base, adapter, adapter.init(jax.random.key(1), base), tmp_path / "llama")
    folder = _base_of(agent, tmp_path / "peft" / "base", 10**9)
    _write_peft(tmp_path / "peft", agent, folder)
    assert folder == (tmp_path / "peft" / "base" if added else tmp_path / "llama")
    assert json.loads((tmp_path / "peft" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(folder)
    rows = open_tensors(folder)["model.embed_tokens.weight"]
    assert rows.shape == (96 + added, SIZES["hidden_size"])
    np.testing.assert_array_equal(rows, base["params"]["embedding"])


@pytest.mark.slow
def test_a_policy_of_arrays_becomes_a_program(tmp_path):
    pytest.importorskip("flatbuffers", reason="needs the extra export: compiled programs are stored in flatbuffers")
    run_dir = train(tmp_path / "run", "world=cartpole", "algorithm=ppo", "quick=true", "policy=gru")
    written = export_run(run_dir, tmp_path / "policy")
    assert written["form"] == "stablehlo"
    program, policy = load_program(tmp_path / "policy"), load_policy(run_dir)
    observation = jax.random.normal(jax.random.key(0), (5, 4))
    action, carry = program(observation)
    wanted, wanted_carry = policy.act(observation)
    np.testing.assert_array_equal(action, wanted)
    action, _ = program(observation[:3] + 1.0, [leaf[:3] for leaf in carry])  # Another batch size, and a memory.
    wanted, _ = policy.act(observation[:3] + 1.0, jax.tree.map(lambda leaf: leaf[:3], wanted_carry))
    np.testing.assert_array_equal(action, wanted)
    with pytest.raises(ValueError, match="`form` must be stablehlo for the policy of .* got merged; try auto"):
        export_run(run_dir, tmp_path / "other", form="merged")
    (tmp_path / "policy" / "policy.stablehlo").unlink()
    with pytest.raises(ValueError, match="`folder` must hold policy.stablehlo, got none"):
        load_program(tmp_path / "policy")


def test_programs_take_masks_and_rewards_where_policies_do(tmp_path):
    pytest.importorskip("flatbuffers", reason="needs the extra export: compiled programs are stored in flatbuffers")
    maze = tmaze.make_environment(corridor_length=2)

    def reset(key, task):
        state, timestep = maze.reset(key, task)
        return state, timestep.replace(action_mask=jnp.ones(4, bool))

    policy = make_policy(maze.observation_space, maze.action_space, encoder=MLP((8,)))
    write_policy(tmp_path / "masked", policy, policy.init(jax.random.key(0)), replace(maze, reset=reset))
    program, observation = load_program(tmp_path / "masked"), np.zeros((2, 4), np.float32)
    allowed = np.arange(4)[None] == np.array([[3], [1]])
    np.testing.assert_array_equal(program(observation, action_mask=allowed)[0], [3, 1])
    with pytest.raises(ValueError, match=r"`action_mask` must be given, \[2, 4\], by what .*signature.json says"):
        program(observation)
    policy = as_policy(
        make_history_actor_critic(
            maze.observation_space, maze.action_space, encoder=MLP((8,)), memory=GRU(hidden_size=8)
        )
    )
    params = policy.init(jax.random.key(0))
    write_policy(tmp_path / "maze", policy, params, maze)
    program, act, states = load_program(tmp_path / "maze"), make_act(policy, maze), (None, None)
    for step, observation in enumerate(jax.random.normal(jax.random.key(1), (4, 3, 4))):
        paid = {"reward": jnp.full(3, 5.0 * step)} if step else {}
        actions, states = zip(program(observation, states[0], **paid), act(params, observation, states[1], **paid))
        np.testing.assert_array_equal(*actions)


@pytest.mark.exhaustive
def test_a_model_of_no_family_and_no_adapter(tmp_path):
    run_dir = train(tmp_path / "tiny", *LAKE, "stages=[]")
    with pytest.raises(ValueError, match="`model` must be a family of checkpoints to be exported, got Transformer"):
        export_run(run_dir, tmp_path / "out", which="last")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="`form` must be one of auto, merged, peft, stablehlo, got 'onnx'"):
        export_run(run_dir, tmp_path / "out", form="onnx")


def test_missing_files_of_a_program_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"must hold signature.json, got none at .*; nothing is downloaded"):
        load_program(tmp_path)
    (tmp_path / "signature.json").write_text(json.dumps({"carry": []}))
    with pytest.raises(ValueError, match=r"must hold weights.safetensors, got none"):
        load_program(tmp_path)
