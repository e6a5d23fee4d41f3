"""Instructed models keep their chat format: roles, ends of turns, and tags of thoughts."""

import json
import shutil
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxagents.data.packing import pack
from jaxagents.data.streams import encode, load_packed
from jaxagents.data.trajectories import from_episodes, parse_line
from jaxagents.data.transcripts import packed_episodes
from jaxagents.environments.text.prompts import make_environment as make_prompts
from jaxagents.language.chat import make_chat_policy
from jaxagents.language.chat_template import cut_pieces, read_template
from jaxagents.language.checkpoints.read import load_language_model
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.dialogue import make_dialogue
from jaxagents.language.host_rewards import texts_of
from jaxagents.learners.supervised import make_supervised
from jaxagents.networks.decoder import Decoder
from jaxagents.policies.contexts import to_rows
from jaxagents.policies.language_model import make_language_model
from jaxagents.training.speaking import make_score, make_speak
from tests.fakes import byte_pairs, score_tokens

tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf: tokenizers")
transformers = pytest.importorskip(
    "transformers", reason="needs the extra hf: chat templates are those of transformers"
)

FAMILIES = ("qwen_25", "qwen_3", "llama_3", "llama_2", "gemma", "mistral")
SPECIAL = ["<s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Without a role of the system, as in Gemma: other texts around turns, and a token at the very beginning.
NO_SYSTEM = (
    "<s>{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """Returns `(template, eos_token_id=None) -> folder` of a tokenizer of bytes."""

    def make(template, **generation):
        backend = byte_pairs(260, "left right up down")
        backend.add_special_tokens(SPECIAL)
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")
        tokenizer.chat_template = template
        folder = tmp_path_factory.mktemp("tokenizer")
        tokenizer.save_pretrained(folder)
        if generation:
            (folder / "generation_config.json").write_text(json.dumps(generation))
        return folder

    return make


@pytest.fixture(scope="module")
def chatml(folder_of):
    return folder_of(CHATML)


def network(vocab_size, **settings):
    shape = {"num_layers": 1, "features": 16, "num_heads": 2, "hidden_features": 16}
    return make_language_model(vocab_size, network=partial(Decoder, **shape | settings))


def test_the_format_is_cut_out_of_the_template(chatml, folder_of):
    reader = read_template(chatml, thinks=True)
    pieces = cut_pieces(reader)
    assert pieces.system_open == "<|im_start|>system\n" and pieces.first_open == "<|im_start|>user\n"
    assert pieces.system_close == "<|im_end|>\n<|im_start|>user\n" and pieces.later_open == "\n<|im_start|>user\n"
    assert pieces.answer_open == "<|im_end|>\n<|im_start|>assistant\n"
    assert pieces.answer_before == pieces.answer_after == ""
    names = reader.tokenizer.convert_ids_to_tokens([reader.end, *reader.stops])
    assert names[0] == "<|im_end|>" and set(names[1:]) == {"<|im_end|>", "<|endoftext|>"}
    other = read_template(folder_of(NO_SYSTEM, eos_token_id=[reader.end, 7]))
    assert not other.takes_system and cut_pieces(other).system_open == "<s><|im_start|>user\n"
    assert set(other.stops) == {7, *reader.stops}


QUICK = (("llama_3", True), ("mistral", True), ("qwen_25", False))


@pytest.mark.parametrize(
    ("family", "prompt"),
    [
        pytest.param(family, prompt, marks=() if (family, prompt) in QUICK else pytest.mark.exhaustive)
        for family in FAMILIES
        for prompt in (True, False)
    ],
)
def test_episodes_are_what_the_template_writes(lake, chat_folder, family, prompt):
    policy = make_chat_policy(lake, source=chat_folder(family), model=network, num_turns=2, prompt=prompt)
    episode = jax.jit(make_demonstrations(lake, policy))(jax.random.key(0), jnp.arange(2, dtype=jnp.int32))
    template = transformers.AutoTokenizer.from_pretrained(chat_folder(family))
    texts = texts_of(policy, jax.tree.map(np.asarray, episode))
    for row in range(2):
        task = jax.tree.map(lambda leaf, row=row: leaf[row], episode.task)
        rules = policy.lexicon.text(lake.text.prompt(task)) if prompt else ""
        messages, written = [{"role": "system", "content": rules}] if rules else [], []
        written += episode.prompt_tokens[row][episode.prompt_mask[row]].tolist()
        turns = int(episode.valid[row].sum())
        for turn in range(turns):
            mask = np.asarray(episode.token_mask[row, turn])
            read = mask & ~np.asarray(episode.action_mask[row, turn])
            number = texts.columns["turn"].index(turn, texts.columns["episode"].index(row))
            seen = texts.prompts[number].splitlines()[-1]
            messages.append({"role": "user", "content": seen})
            if family == "gemma" and rules and turn == 0:
                messages = [{"role": "user", "content": f"{rules}\n\n{seen}"}]
            if turn == 0 or (family not in ("qwen_3", "mistral")):  # The deviation of `make_chat_policy`.
                wanted = template.apply_chat_template(
                    messages, tokenize=True, return_dict=True, add_generation_prompt=True, enable_thinking=False
                )["input_ids"]
                assert [*written, *episode.tokens[row, turn][read].tolist()] == wanted
            written += episode.tokens[row, turn][mask].tolist()
            messages.append({"role": "assistant", "content": texts.completions[number]})
        assert turns == 2
        (trajectory, *_) = from_episodes(
            jax.tree.map(lambda leaf, row=row: np.asarray(leaf[row : row + 1]), episode),
            policy.tokenizer,
            frames=policy.lexicon.frames,
        )
        bot = messages if not rules or family == "gemma" else messages[1:]
        assert trajectory.prompt == rules
        if family != "gemma" or not rules:
            pairs = [text for turn in trajectory.turns for text in (turn.observation, turn.action)]
            assert pairs == [message["content"] for message in bot]


@pytest.mark.parametrize(
    "family", [name if name in dict(QUICK) else pytest.param(name, marks=pytest.mark.exhaustive) for name in FAMILIES]
)
def test_own_prompts_are_asked_as_the_template_asks_them(chat_folder, family):
    rows = [{"prompt": f"What is the opposite of naïve 🙂 {i}?", "answer": "wise"} for i in range(3)]
    rows += [{"prompt": f"Solve:\n\n2  + {i}\n"} for i in range(3)]
    world = make_prompts(rows=rows)
    policy = make_chat_policy(world, source=chat_folder(family), model=network, context_turns=1, prompt=False)
    episode = jax.jit(make_demonstrations(world, policy))(jax.random.key(0), jnp.arange(12, dtype=jnp.int32))
    template = transformers.AutoTokenizer.from_pretrained(chat_folder(family))
    texts, found = texts_of(policy, jax.tree.map(np.asarray, episode)), set()
    for number, row in enumerate(np.asarray(episode.task["row"]).tolist()):
        asked = [{"role": "user", "content": rows[row]["prompt"].strip()}]
        wanted = template.apply_chat_template(
            asked, tokenize=True, return_dict=True, add_generation_prompt=True, enable_thinking=False
        )["input_ids"]
        mask = np.asarray(episode.token_mask[number, 0] & ~episode.action_mask[number, 0])
        assert episode.tokens[number, 0][mask].tolist() == wanted
        assert texts.prompts[number] == asked[0]["content"]  # As TRL passes them to a reward function.
        if "answer" in rows[row]:
            assert texts.completions[number] == rows[row]["answer"]
            tokens, bot = episode.tokens[number, 0], episode.action_mask[number, 0]
            assert policy.lexicon.parse(tokens, bot, 1)[1] and int(tokens[bot][-1]) in policy.tokenizer.ends
        found.add(row > 2)
    assert found == {False, True}


@pytest.mark.slow
def test_decoding_and_training_agree(lake, folder_of):
    source = folder_of(CHATML, eos_token_id=[SPECIAL.index("<think>")])
    policy = make_chat_policy(lake, source=source, model=network, num_turns=2, thought_tokens=4)
    params = policy.init(jax.random.key(1))

    @jax.jit
    def both(params):
        episode = make_dialogue(lake, policy, group_size=2)(params, jax.random.key(5), jnp.arange(2))
        scored = score_tokens(policy.model, params, to_rows(episode), policy.layout)
        return episode, scored.log_prob.reshape(episode.tokens.shape)

    episode, log_prob = both(params)
    mask = np.asarray(episode.action_mask)
    assert np.any(episode.thought_mask)
    np.testing.assert_allclose(np.asarray(episode.behavior_log_prob)[mask], np.asarray(log_prob)[mask], atol=1e-4)


def test_a_turn_ends_with_any_stop_and_each_has_its_own_probability(lake, chatml):
    policy = make_chat_policy(lake, source=chatml, model=network, num_turns=1, prompt=False)
    ends = policy.tokenizer.ends
    assert len(ends) == 2 and policy.tokenizer.decode(list(ends)) == ""
    bot = jnp.asarray([*policy.tokenizer.encode("left"), ends[1]])
    assert policy.lexicon.parse(bot, jnp.ones(bot.shape, bool), 1)[1]


CHATS = [
    [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "left or right?"},
        {"role": "assistant", "content": "left"},
        {"role": "user", "content": "and now?"},
        {"role": "assistant", "content": "right"},
    ],
    [{"role": "user", "content": "up?"}, {"role": "assistant", "content": "down"}],
]


def test_files_of_chats_are_written_as_the_template_writes_them(lake, chatml, tmp_path):
    policy = make_chat_policy(lake, source=chatml, model=network)
    template = transformers.AutoTokenizer.from_pretrained(chatml)
    for messages in CHATS:
        (sequence,) = encode(
            parse_line(json.dumps({"messages": messages}).encode()), policy.tokenizer, chat=policy.lexicon.chat
        )
        wanted = template.apply_chat_template(messages, tokenize=False)
        assert template.decode(sequence.tokens) == wanted
        learned = [token for token, weight in zip(sequence.tokens, sequence.loss_weight, strict=True) if weight]
        bot = [message["content"] for message in messages if message["role"] == "assistant"]
        assert template.decode(learned) == "".join(text + "<|im_end|>" for text in bot)
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps({"messages": messages, "success": True}) + "\n" for messages in CHATS))
    packed = load_packed(file, policy.tokenizer, row_length=128, chat=policy.lexicon.chat)
    assert packed.success.all()


def test_what_is_refused(lake, folder_of, tmp_path):
    make = partial(make_chat_policy, lake, model=network)
    with pytest.raises(ValueError, match=r"`source` must hold tokenizer_config.json, got none in .*; nothing is down"):
        make(source=tmp_path)
    with pytest.raises(ValueError, match="`source` must have a chat template, got none in"):
        make(source=folder_of(None))
    with pytest.raises(ValueError, match="must have roles, got one that leaves out the assistant's text"):
        make(source=folder_of("{{ messages[0].content }}"))
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    with pytest.raises(ValueError, match="must end what the assistant says with a special token"):
        make(source=folder_of(plain))
    with pytest.raises(ValueError, match=r"`think_tags` must end with a token of the vocabulary, got '</hmm>'"):
        make(source=folder_of(CHATML), thought_tokens=3, think_tags=("<hmm>", "</hmm>"))
    learned = partial(network, positions="learned", max_positions=50)
    with pytest.raises(ValueError, match=r"`model.max_positions` must be at least the \d+ tokens of an episode"):
        make_chat_policy(lake, source=folder_of(CHATML), model=learned)


@pytest.mark.slow
def test_scores_are_those_of_transformers_and_the_end_of_a_turn_is_learned(lake, chat_folder, tmp_path):
    torch = pytest.importorskip("torch", reason="needs the extra hf: models of transformers")
    shutil.copytree(chat_folder("qwen_25"), tmp_path, dirs_exist_ok=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), num_key_value_heads=2, **sizes)
    torch.manual_seed(0)
    reference = transformers.LlamaForCausalLM(config)
    reference.save_pretrained(tmp_path)
    stops = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    model = partial(load_language_model, path=tmp_path, dtype="float32")
    policy = make_chat_policy(lake, source=tmp_path, model=model, num_turns=1)
    assert set(policy.tokenizer.ends) == set(stops)
    params = policy.init(jax.random.key(0))
    found = make_score(policy)(params, CHATS[0])
    ids = tokenizer.apply_chat_template(CHATS[0], return_dict=True, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        log_probs = torch.log_softmax(reference(ids).logits.double(), dim=-1)[0, :-1]
    wanted = log_probs.gather(1, ids[0, 1:, None])[:, 0].numpy()
    np.testing.assert_array_equal(found.tokens, ids[0].numpy())
    np.testing.assert_allclose(found.log_prob[1:], wanted, atol=1e-4)
    assert found.completion_mask[found.tokens == stops[0]].tolist() == [
        False,
        False,
        True,
        False,
        True,
    ]  # System, user, ...
    (sequence,) = encode(parse_line(json.dumps({"messages": CHATS[1]}).encode()), None, chat=policy.lexicon.chat)
    batch = packed_episodes(jax.tree.map(jnp.asarray, pack([sequence], 96, pad=0)))
    learner = make_supervised(policy.model, optax.adam(0.02))
    state = learner.init(jax.random.key(1), params)
    keys = jax.random.split(jax.random.key(2), 60)
    learn = jax.jit(lambda state: jax.lax.scan(lambda state, key: learner.update(state, key, batch), state, keys)[0])
    state = learn(state)
    learned = make_score(policy)(state.params, CHATS[1])
    assert np.exp(learned.log_prob[learned.completion_mask].min()) > 0.9
    assert make_speak(policy)(state.params, CHATS[1][:1]) == "down"
