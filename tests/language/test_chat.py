"""Instructed models keep their chat format: roles, ends of turns, and tags of thoughts."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagents.data.streams import encode, load_packed
from jaxagents.data.trajectories import parse_line
from jaxagents.language.chat import make_chat_policy, read_chat_format, stop_together
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.dialogue import make_dialogue
from jaxagents.networks.decoder import Decoder
from jaxagents.policies.contexts import score_tokens, to_rows
from jaxagents.policies.language_model import make_language_model

tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf: tokenizers")
transformers = pytest.importorskip(
    "transformers", reason="needs the extra hf: chat templates are those of transformers"
)

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
        backend = tokenizers.Tokenizer(tokenizers.models.BPE())
        backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = tokenizers.decoders.ByteLevel()
        alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=260, initial_alphabet=alphabet, show_progress=False)
        backend.train_from_iterator(["left right up down"], trainer)
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
    backend, chat = read_chat_format(chatml, thinks=True)

    def text(tokens):
        return backend.decode(list(tokens), skip_special_tokens=False)

    assert text(chat.prompt_open) == "<|im_start|>system\n"
    assert text((*chat.prompt_close, *chat.user_open)) == "<|im_end|>\n<|im_start|>user\n"
    assert text(chat.first_open) == "<|im_start|>user\n"
    assert text(chat.user_open) == "\n<|im_start|>user\n"
    assert text(chat.assistant_open) == "<|im_end|>\n<|im_start|>assistant\n"
    assert text([chat.end, chat.think_close]) == "<|im_end|></think>"
    assert text(chat.stops) in ("<|im_end|><|endoftext|>", "<|endoftext|><|im_end|>")
    assert text(chat.think_open) == "<think>\n"
    _, other = read_chat_format(folder_of(NO_SYSTEM, eos_token_id=[chat.end, chat.think_close]))
    assert text(other.prompt_open) == "<s><|im_start|>user\n" and text(other.prompt_close) == "<|im_end|>"
    assert other.stops == tuple(sorted({chat.end, chat.think_close, backend.token_to_id("<|endoftext|>")}))


@pytest.mark.parametrize("prompt", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_episodes_are_what_the_template_writes(lake, chatml, prompt):
    policy = make_chat_policy(lake, source=chatml, model=network, num_turns=2, prompt=prompt)
    episode = jax.jit(make_demonstrations(lake, policy))(jax.random.key(0), jnp.arange(3, dtype=jnp.int32))
    template = transformers.AutoTokenizer.from_pretrained(chatml)
    for row in range(3):
        task = jax.tree.map(lambda leaf, row=row: leaf[row], episode.task)
        messages = [{"role": "system", "content": policy.lexicon.text(lake.text.prompt(task))}] if prompt else []
        written = episode.prompt_tokens[row][episode.prompt_mask[row]].tolist()
        for turn in range(int(episode.valid[row].sum())):
            tokens, mask = episode.tokens[row, turn], episode.token_mask[row, turn]
            written += tokens[mask].tolist()
            seen = template.decode(tokens[: policy.layout.observation][mask[: policy.layout.observation]])
            seen = seen.split("user\n")[1].split("<|im_end|>")[0]
            said = policy.tokenizer.decode(tokens[episode.action_mask[row, turn]])
            messages += [{"role": "user", "content": seen}, {"role": "assistant", "content": said}]
        text = template.decode(written).removeprefix("" if prompt else "\n")  # The deviation that is told.
        wanted = template.apply_chat_template(messages, tokenize=False).removesuffix("\n")
        assert text == wanted
        assert len(messages) >= 3


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


def test_tokens_that_stop_are_one_event(chatml):
    _, chat = read_chat_format(chatml)
    model = network(300)
    params = model.init(jax.random.key(0))
    hidden = jax.random.normal(jax.random.key(1), (3, 16))
    before = jax.nn.softmax(model.logits(params, hidden))
    after = jax.nn.softmax(stop_together(model, chat).logits(params, hidden))
    (other,) = set(chat.stops) - {chat.end}
    np.testing.assert_allclose(after[:, chat.end], before[:, chat.end] + before[:, other], rtol=1e-5)
    np.testing.assert_array_equal(after[:, other], 0.0)
    rest = [token for token in range(300) if token not in chat.stops]
    np.testing.assert_allclose(after[:, rest], before[:, rest], rtol=1e-5)


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
        wanted = template.apply_chat_template(messages, tokenize=False).removesuffix("\n")
        assert template.decode(sequence.tokens) == wanted
        learned = [token for token, weight in zip(sequence.tokens, sequence.loss_weight, strict=True) if weight]
        said = [message["content"] for message in messages if message["role"] == "assistant"]
        assert template.decode(learned) == "".join(text + "<|im_end|>" for text in said)
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
