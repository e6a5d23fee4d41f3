"""Packed rows of files: the tokens of a dialogue, and every trajectory once."""

import jax
import numpy as np
import pytest

from jaxagents.data.schema import ToolCall, Trajectory, Turn
from jaxagents.data.streams import encode, load_packed
from jaxagents.data.trajectories import from_episodes, read_trajectories, write_trajectories
from jaxagents.environments.text import frozenlake
from jaxagents.language.demonstrations import make_demonstrations
from jaxagents.language.policy import make_language_policy
from jaxagents.language.tokenizers import word_level
from jaxagents.types import LanguageModel


def make(index, size=1):
    """Returns a trajectory that takes `size + 6` tokens; its action names it."""
    turn = Turn(turn=0, observation="o" * size, action=f"{index:03d}")
    return Trajectory(id=str(index), world="w", turns=(turn,))


@pytest.fixture(params=["data.jsonl", "data.jsonl.gz"])
def path(request, tmp_path):
    file = tmp_path / request.param
    write_trajectories(file, [make(index, 1 + index % 5) for index in range(20)])
    return file


def names(batches):
    """Returns the names of the trajectories in batches, in their order."""
    rows = [(batch.tokens[row], batch.segment[row]) for batch in batches for row in range(len(batch.tokens))]
    found = []
    for tokens, segment in rows:
        for index in range(segment.max(initial=-1) + 1):
            found.append("".join(map(chr, tokens[segment == index][-4:-1])))
    return found


def test_tokens_by_hand(tokenizer):
    call = ToolCall(name="f", arguments={"x": 1}, result={"y": 2})
    turns = (
        Turn(turn=0, observation="a", action="b", tool_calls=(call,)),
        Turn(turn=1, observation="c", thought="d", action="", weight=0.5),
        Turn(turn=1, observation="e", action="f", agent=1),
        Turn(turn=2, observation="", action="g"),
    )
    trajectory = Trajectory(id="x", world="w", prompt="p", turns=turns, agents=("x", "y"))
    first, second = encode(trajectory, tokenizer)
    o, t, a, e = (tokenizer.marks[name] for name in ("observation", "think", "act", "end"))
    answer, result = 'b\n{"name": "f", "arguments": {"x": 1}}', '{"y": 2}\nc'
    parts = [
        (0, False, [*b"p", o, *b"a", a]),
        (1, False, [*answer.encode(), e]),
        (0, False, [o, *result.encode(), t]),
        (0.5, True, [*b"d", a]),
        (0.5, False, [e]),
        (0, False, [o, a]),
        (1, False, [*b"g", e]),
    ]
    assert first.tokens == [token for _, _, tokens in parts for token in tokens]
    assert first.loss_weight == [weight for weight, _, tokens in parts for _ in tokens]
    assert first.thought_mask == [thought for _, thought, tokens in parts for _ in tokens]
    assert second.tokens == [*b"p", o, *b"e", a, *b"f", e]
    assert second.loss_weight == [0, 0, 0, 0, 1, 1] and not any(second.thought_mask)


@pytest.mark.slow
def test_tokens_are_those_of_a_dialogue(tmp_path):
    environment = frozenlake.make_environment()
    model = lambda vocab_size: LanguageModel(*[None] * 6, vocab_size=vocab_size)  # noqa: E731  It does not act.
    policy = make_language_policy(environment, tokenizer=word_level, model=model, num_turns=4)
    demonstrate = make_demonstrations(environment, policy, noise=0.5)
    episode = jax.tree.map(np.asarray, jax.jit(demonstrate)(jax.random.key(0), np.arange(4)))
    write_trajectories(tmp_path / "a.jsonl", from_episodes(episode, policy.tokenizer))
    for row, trajectory in enumerate(read_trajectories(tmp_path / "a.jsonl")):
        (sequence,) = encode(trajectory, policy.tokenizer)
        prompt = episode.prompt_tokens[row, episode.prompt_mask[row]]
        turns, sampled = (leaf[row, episode.token_mask[row]] for leaf in (episode.tokens, episode.action_mask))
        assert prompt.size and turns.size
        np.testing.assert_array_equal(sequence.tokens, [*prompt, *turns])
        np.testing.assert_array_equal(sequence.loss_weight, [*np.zeros(prompt.size), *sampled])


def test_a_batch_by_hand(tmp_path, tokenizer):
    write_trajectories(tmp_path / "a.jsonl", [make(7)])
    batch = load_packed([tmp_path / "a.jsonl"], tokenizer, row_length=9)
    np.testing.assert_array_equal(batch.tokens, [[2, 111, 4, *b"007", 1, 0, 0]])
    np.testing.assert_array_equal(batch.loss_weight, [[0, 0, 0, 1, 1, 1, 1, 0, 0]])
    np.testing.assert_array_equal(batch.segment, [[0] * 7 + [-1] * 2])
    np.testing.assert_array_equal(batch.positions, [[0, 1, 2, 3, 4, 5, 6, 0, 0]])


def test_every_trajectory_once(path, tokenizer):
    batch = load_packed(path, tokenizer, row_length=24)
    assert sorted(names([batch])) == [f"{index:03d}" for index in range(20)] and batch.tokens.shape[1] == 24


def test_several_files_and_damage(tmp_path, tokenizer):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    write_trajectories(first, [make(0), make(1)])
    write_trajectories(second, [make(2)])
    first.write_bytes(first.read_bytes().replace(b"\n", b"\nbroken\n", 1))
    options = {"row_length": 9, "report": pytest.fail}
    with pytest.raises(ValueError, match="a.jsonl, line 2: the line must be JSON"):
        load_packed([first, second], tokenizer, **options)
    messages = []
    options |= {"on_error": "skip", "report": messages.append}
    found = names([load_packed([first, second], tokenizer, **options)])
    assert sorted(found) == ["000", "001", "002"] and len(messages) == 2


def test_sequences_that_are_too_long(tmp_path, tokenizer):
    path, messages = tmp_path / "a.jsonl", []
    write_trajectories(path, [make(0), make(1, 50), make(2)])
    options = {"row_length": 10, "report": messages.append}
    with pytest.raises(
        ValueError, match="`row_length` must hold every sequence, got 10 for the 56 tokens of .*a.jsonl, line 2"
    ):
        load_packed(path, tokenizer, **options)
    assert sorted(names([load_packed(path, tokenizer, overlong="skip", **options)])) == ["000", "002"]
    cut = load_packed(path, tokenizer, overlong="truncate", **options)
    assert len(cut.tokens) == 3 and sum(cut.token_mask.all(axis=1)) == 1
    expected = "1 sequences are longer than the 10 tokens of a row: {}."
    assert messages == [expected.format("skipped"), expected.format("truncated")]
    with pytest.raises(ValueError, match="`paths` must hold a sequence of at most 3 tokens, got none"):
        load_packed(path, tokenizer, overlong="skip", **(options | {"row_length": 3}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row_length": 0}, "`length` of a row must be at least 1, got 0"),
        ({"overlong": "cut"}, "`overlong` must be"),
        ({"on_error": "ignore"}, "`on_error` must be"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, tokenizer, change, message):
    write_trajectories(tmp_path / "a.jsonl", [make(0)])
    with pytest.raises(ValueError, match=message):
        load_packed(tmp_path / "a.jsonl", tokenizer, **({"row_length": 9} | change))


def test_tokenizers_need_their_marks(tmp_path, tokenizer):
    write_trajectories(tmp_path / "a.jsonl", [make(0)])
    without = tokenizer._replace(marks={"pad": 0, "end": 1, "act": 2, "observation": 3})
    with pytest.raises(ValueError, match="`tokenizer` must have the mark 'think'"):
        load_packed(tmp_path / "a.jsonl", without, row_length=9)
