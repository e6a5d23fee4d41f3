"""Language: episodes of tokens, tokenizers, language models and language policies."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from flax import struct

from jaxagents.types.environments import Array, Params, PyTree, Task


class Layout(NamedTuple):
    """The places of the tokens in an episode: `[prompt | turn | turn | ...]`.

    A turn is `[observation mark, observation, opening mark | thought, act mark | action]`; without thoughts the
    opening mark is the act mark, and the second part is missing.

    Attributes:
        prompt: P, number of tokens of the prompt.
        observation: number of tokens of a rendered observation, including marks.
        thought: largest number of tokens of a thought; 0: no thoughts.
        action: largest number of tokens of an action, including its end mark.
        num_turns: T, number of turns.
        context_turns: number of turns of its own agent that the policy sees, including the current one; the prompt is
            always visible.
    """

    prompt: int
    observation: int
    thought: int
    action: int
    num_turns: int
    context_turns: int

    @property
    def sampled(self) -> int:
        """Returns the number of tokens of a turn after the observation."""
        return self.action + (self.thought + 1 if self.thought else 0)

    @property
    def turn(self) -> int:
        """Returns S, the number of tokens of a turn."""
        return self.observation + self.sampled

    @property
    def length(self) -> int:
        """Returns L, the number of tokens of an episode."""
        return self.prompt + self.num_turns * self.turn


@struct.dataclass
class Episode:
    """Text episodes, one per row: a prompt of P tokens, then T turns of S tokens each (see `Layout`).

    Observations and actions are padded, and masks mark the padding. Attention, positions and losses use the masks and
    never compare tokens with the pad token.

    Attributes:
        prompt_tokens: int32 `[B, P]`, visible to all agents of the row; P may be 0.
        prompt_mask: bool `[B, P]`.
        tokens: int32 `[B, T, S]`.
        token_mask: bool `[B, T, S]`, True = token, False = padding.
        action_mask: bool `[B, T, S]`, tokens that the policy sampled (thoughts, actions and end marks).
        thought_mask: bool `[B, T, S]`, sampled tokens that belong to thoughts.
        position: int32 `[B, T, S]`, position of a token in its context: the number of its agent's tokens before it,
            including the prompt.
        agent: int32 `[B, T, S]`, agent to whose context the token belongs.
        behavior_log_prob: float32 `[B, T, S]`, of sampled tokens under the acting policy without tempering; 0
            elsewhere.
        sampling_log_prob: float32 `[B, T, S]`, of the same tokens under the distribution from which they were drawn.
        reward: float32 `[B, T]`, zero if there was no turn; in games, the reward of the player who took the turn, from
            it until the player's next turn or the end.
        valid: bool `[B, T]`, whether the turn took place.
        action_valid: bool `[B, T]`, whether the action of the turn could be parsed and was legal.
        terminated: bool `[B, T]`, whether the turn ended the episode in a terminal state.
        truncated: bool `[B, T]`, whether the turn ended the episode by a limit.
        fingerprint: uint32 `[B, T]`, fingerprint of the state in which the turn acted.
        success: bool `[B]`, whether the episode succeeded.
        group: int32 `[B]`, group of the episode; episodes of a group have the same task.
        task: pytree with leaves `[B, ...]`, tasks of the episodes.
        seat_return: float32 `[B, P]`, total reward of each player of a game; None with a single player.
        keep: bool `[B]`, False for rows that do not count at all because a filter dropped their group; None: all count.
        control: bool `[B]`, rows that were sampled to steer the policy and not by it; None: no such rows.
        loss_weight: float32 `[B, T, S]`, weight of the loss of tokens of transcripts; None: 1.
        bootstrap_value: float32 `[B]`, value after the last turn of a row that was cut off; None: 0.
        extras: dict of further arrays with leading axis B.
        layout: layout of the tokens, static; None if turns have no fixed places.
    """

    prompt_tokens: Array
    prompt_mask: Array
    tokens: Array
    token_mask: Array
    action_mask: Array
    thought_mask: Array
    position: Array
    agent: Array
    behavior_log_prob: Array
    sampling_log_prob: Array
    reward: Array
    valid: Array
    action_valid: Array
    terminated: Array
    truncated: Array
    fingerprint: Array
    success: Array
    group: Array
    task: Task = None
    seat_return: Array | None = None
    keep: Array | None = None
    control: Array | None = None
    loss_weight: Array | None = None
    bootstrap_value: Array | None = None
    extras: Mapping[str, PyTree] = struct.field(default_factory=dict)
    layout: Layout | None = struct.field(pytree_node=False, default=None)


@struct.dataclass
class TokenStatistics:
    """Statistics of a model about tokens, `[B, T, S]`, zero at tokens that were not sampled; None: not requested.

    Attributes:
        log_prob: float32, log-probability of the token.
        entropy: float32, entropy of the distribution from which it is sampled, in nats.
        value: float32, value of the context in which it is sampled.
    """

    log_prob: Array | None = None
    entropy: Array | None = None
    value: Array | None = None


@struct.dataclass
class EpisodeView:
    """Input of rewards, group filters and credit assignment: `(view, *, axis_name, ...) -> ...`.

    The statistics that a slot reads are computed for it, and no others; see `learners.liveness.fields_read`.

    Attributes:
        episode: B episodes.
        policy: statistics of their tokens under the trained policy, before the update.
        reference: statistics of their tokens under the reference policy; None without one.
    """

    episode: Episode
    policy: TokenStatistics = TokenStatistics()
    reference: TokenStatistics | None = None


@struct.dataclass
class TokenView:
    """Input of losses, regularisers and aggregations: `(view, ...) -> [n, t, S]`, rows, turns, tokens of a turn.

    A row is an episode, or one of its turns if turns do not see each other. All leaves are `[n, t, S]`. An aggregation
    receives whole episodes before the model has processed them: `log_prob` and `entropy` are None.

    Attributes:
        mask: bool, sampled tokens that count.
        turn: int32, index of the turn in the episode.
        sequence: int32, index in the row of the token's agent (player, transcript); tokens of one agent are a sequence.
        behavior_log_prob: float32, under the policy that acted.
        advantage: float32; None without credit (supervised training).
        success: bool, whether the episode succeeded.
        group_success: float32, fraction of the episodes of the group that succeeded.
        demonstrated: bool, whether the row was not sampled by the policy (`Episode.control`), but by an expert, for
            example; None without such rows.
        log_prob: float32, under the trained policy; the only leaf with a gradient besides `entropy`.
        entropy: float32, entropy of the distribution from which the token is sampled, in nats.
        reference_log_prob: float32, under the reference policy; None without one.
        sequence_log_ratio: float32, mean of `log_prob - behavior_log_prob` over the tokens of the sequence that count;
            None for an aggregation.
        num_sequences: number of sequences per row; static.
    """

    mask: Array
    turn: Array
    sequence: Array
    behavior_log_prob: Array
    advantage: Array | None = None
    success: Array | None = None
    group_success: Array | None = None
    demonstrated: Array | None = None
    log_prob: Array | None = None
    entropy: Array | None = None
    reference_log_prob: Array | None = None
    sequence_log_ratio: Array | None = None
    num_sequences: int = struct.field(pytree_node=False, default=1)


@struct.dataclass
class Demonstrated:
    """Episodes of a policy, and those of an expert on the same tasks.

    Attributes:
        own: `Episode` of `n * G` rows, with the G rows of a task next to each other.
        demonstration: `Episode` of n rows, with tasks in the same order; the expert's tokens count as sampled.
    """

    own: Episode
    demonstration: Episode


@struct.dataclass
class Pairs:
    """Episodes, some of which are preferred to others.

    Attributes:
        episode: `Episode` of R rows.
        pair: int32 `[R]`, for a dispreferred row, the index of the row that is preferred to it; -1 for all others.
        desirable: bool `[R]`, whether the row is good by itself.
    """

    episode: Episode
    pair: Array
    desirable: Array


@struct.dataclass
class ChosenTasks:
    """Tasks for n groups of episodes.

    Attributes:
        key: typed keys `[n]`; equal keys and levels mean equal tasks that start in the same state.
        level: int32 `[n]`, difficulty; None if every task draws its own.
        item: int32 `[n]`, index under which the source counts the task.
    """

    key: Array
    level: Array | None
    item: Array


class TaskSource(NamedTuple):
    """A source of tasks for dialogues, which may remember their outcomes.

    Attributes:
        init: `(key, num_groups) -> state`, leaves `[num_groups, ...]`, because a collector's state is sharded over
            devices.
        choose: `(state, key, index int32 [n]) -> ChosenTasks` for the groups with these global indices; indices of
            further rounds of a batch are beyond `num_groups`.
        update: `(state, chosen, success float32 [n], axis_name=None) -> state`; `success` is the fraction of the
            episodes of each group that succeeded.
    """

    init: Callable[[Array, int], PyTree]
    choose: Callable[[PyTree, Array, Array], ChosenTasks]
    update: Callable[..., PyTree]


class Tokenizer(NamedTuple):
    """A conversion of text to token ids and back.

    Attributes:
        name: name for messages.
        encode: `(text) -> list of ids`, without marks.
        decode: `(ids) -> text`; marks are dropped.
        vocab_size: exclusive upper bound of the ids.
        marks: ids of the control tokens by name: "pad", "end" (of an action), "observation" (before one), "think"
            (before a thought), "act" (before an action, after a thought).
        data: bytes from which `language.tokenizers.restore` makes the same tokenizer.
        stops: further tokens that end the policy's output, besides the mark "end".
    """

    name: str
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    vocab_size: int
    marks: Mapping[str, int]
    data: bytes
    stops: tuple[int, ...] = ()

    @property
    def ends(self) -> tuple[int, ...]:
        """Returns all tokens that end the policy's output."""
        return (self.marks["end"], *self.stops)

    def is_end(self, tokens: Array) -> Array:
        """Returns which tokens, of any shape, end the policy's output, bool."""
        return reduce(or_, (tokens == end for end in self.ends))


class ChatTokens(NamedTuple):
    """A conversation as rendered by a chat template; lists with one entry per token.

    Attributes:
        tokens: ids.
        message: index of the assistant message that contains the token; -1 for tokens that are only read.
        thought: whether the token is part of a thought, including tags.
        num_lost: number of thoughts of the conversation that the template drops.
    """

    tokens: list[int]
    message: list[int]
    thought: list[bool]
    num_lost: int


class ChatTemplate(NamedTuple):
    """The conversation format on which a checkpoint was trained, see `language.chat_template`.

    Attributes:
        encode: `(messages, tools=()) -> ChatTokens` for a whole conversation.
        encode_prompt: `(messages, tools=()) -> list of ids` up to where the assistant's next message starts.
        end: token that ends an assistant message.
        stops: all tokens that end it, including `end`.
    """

    encode: Callable[..., ChatTokens]
    encode_prompt: Callable[..., list[int]]
    end: int
    stops: tuple[int, ...]


@struct.dataclass
class CausalMask:
    """Which tokens attend to which, with a few numbers per token instead of a bit per pair; see `networks.attention`.

    A token sees real tokens up to itself: the prompt, and those of its own agent's recent turns.

    Attributes:
        turn: int32 `[B, W]`, index of a token's turn among those of its agent, -1 for the prompt.
        agent: int32 `[B, W]`, agent of the token.
        present: bool `[B, W]`, False for padding.
        context_turns: number of own turns that are visible, including the current one.
    """

    turn: Array
    agent: Array
    present: Array
    context_turns: int = struct.field(pytree_node=False)


class LanguageModel(NamedTuple):
    """A causal model of token sequences; masks specify which tokens attend to which.

    A `mask` has a bool per pair, True if the query (second axis) sees the key (third axis), or is a `CausalMask` of the
    keys, from which `networks.attention.dense_mask` computes these bits.

    Attributes:
        init: `(key) -> params`; see `pretrained`.
        apply: `(params, tokens [B, L], *, positions [B, L], mask [B, L, L]) -> hidden [B, L, D]`.
        init_cache: `(batch_size, length) -> cache` for W = length keys and values per row.
        extend: `(params, cache, tokens [B, S], *, positions [B, S], index, mask [B, S, W]) -> (cache, hidden [B, S,
            D])`; writes the S keys and values at `index` (int32 `[]`, the same for all rows), then attends to the
            cache.
        logits: `(params, hidden [..., D]) -> [..., V]`.
        value: `(params, hidden [..., D]) -> [...]`; None without a value head.
        vocab_size: V, number of token ids.
        max_positions: exclusive upper bound of positions; None: no bound.
        pretrained: whether `init` reads a checkpoint on the host. When traced, it returns shapes filled with NaN,
            because the weights would become constants of the program: call it outside, and pass its result on.
    """

    init: Callable[[Array], Params]
    apply: Callable[..., Array]
    init_cache: Callable[[int, int], PyTree]
    extend: Callable[..., tuple[PyTree, Array]]
    logits: Callable[[Params, Array], Array]
    value: Callable[[Params, Array], Array] | None
    vocab_size: int
    max_positions: int | None = None
    pretrained: bool = False


class LanguagePolicy(NamedTuple):
    """A language model that speaks with the words of one text world.

    Attributes:
        model: language model.
        tokenizer: tokenizer of the model.
        lexicon: `language.lexicon.Lexicon`, the words of the world as tokens.
        layout: layout of the episodes.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    lexicon: Any
    layout: Layout

    @property
    def init(self) -> Callable[[Array], Params]:
        """Returns `(key) -> params`."""
        return self.model.init
