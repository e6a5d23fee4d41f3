"""Language: episodes of tokens, tokenizers, language models and their policies."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from flax import struct

from jaxagents.types.environments import Array, Params, PyTree, Task


class Layout(NamedTuple):
    """Where the tokens of an episode stand: `[prompt | turn | turn | ...]`.

    A turn is `[observation mark, observation, opening mark | thought, act mark | action]`; without thoughts the
    opening mark is the act mark, and the second part is missing.

    Attributes:
        prompt: P, tokens of the prompt.
        observation: tokens of a rendered observation, marks included.
        thought: most tokens of a thought; 0 for none.
        action: most tokens of an action, its end mark included.
        num_turns: T.
        context_turns: turns of its own agent that the policy sees, the present one included; the prompt is always seen.
    """

    prompt: int
    observation: int
    thought: int
    action: int
    num_turns: int
    context_turns: int

    @property
    def sampled(self) -> int:
        """Returns the tokens of a turn after the observation."""
        return self.action + (self.thought + 1 if self.thought else 0)

    @property
    def turn(self) -> int:
        """Returns S, the tokens of a turn."""
        return self.observation + self.sampled

    @property
    def length(self) -> int:
        """Returns L."""
        return self.prompt + self.num_turns * self.turn


@struct.dataclass
class Episode:
    """Episodes of text, one row each: a prompt of P tokens, then T turns of S tokens each (see `Layout`).

    Observations and actions are padded, and masks say where. Attention, positions and losses read the masks and never
    compare tokens with the pad.

    Attributes:
        prompt_tokens: int32 `[B, P]`, which everybody in the row sees; P may be 0.
        prompt_mask: bool `[B, P]`.
        tokens: int32 `[B, T, S]`.
        token_mask: bool `[B, T, S]`, True = there is a token, False = padding.
        action_mask: bool `[B, T, S]`, tokens that the policy sampled (thoughts, actions and end marks).
        thought_mask: bool `[B, T, S]`, those of them that are thoughts.
        position: int32 `[B, T, S]`, of a token in its context: how many of its agent's came before, the prompt
            included.
        agent: int32 `[B, T, S]`, whose context the token belongs to.
        behavior_log_prob: float32 `[B, T, S]`, of sampled tokens under the acting policy, untempered; 0 elsewhere.
        sampling_log_prob: float32 `[B, T, S]`, of the same under the distribution they were drawn from.
        reward: float32 `[B, T]`, zero where there was no turn; in games, what the seat that took the turn earned from
            it until its next one or the end.
        valid: bool `[B, T]`, the turn took place.
        action_valid: bool `[B, T]`, the action of the turn could be parsed and was legal.
        terminated: bool `[B, T]`, the turn ended the episode in a terminal state.
        truncated: bool `[B, T]`, the turn ended the episode by a limit.
        fingerprint: uint32 `[B, T]`, of the state that the turn acted in.
        success: bool `[B]`.
        group: int32 `[B]`, episodes of one group play the same task.
        task: pytree with leaves `[B, ...]`.
        seat_return: float32 `[B, P]`, what every seat of a game got in all; None where there is one seat.
        keep: bool `[B]`, False for rows that count nowhere: a filter dropped their group; None keeps all.
        control: bool `[B]`, rows that were sampled to steer the policy and not by it; None has none of them.
        loss_weight: float32 `[B, T, S]`, multiplies the loss of tokens of transcripts; None is 1.
        bootstrap_value: float32 `[B]`, value of what followed the last turn of a row that was cut; None is 0.
        extras: dict of further arrays with the leading axis B.
        layout: of the tokens, static; None when turns have no fixed places.
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
    """What a model says about tokens, `[B, T, S]`, zero where nothing was sampled; None where nobody asked for it.

    Attributes:
        log_prob: float32, of the token.
        entropy: float32, of the distribution that it comes from, in nats.
        value: float32, of the context that it is sampled from.
    """

    log_prob: Array | None = None
    entropy: Array | None = None
    value: Array | None = None


@struct.dataclass
class EpisodeView:
    """What rewards, filters of groups and credit are given: `(view, *, axis_name, ...) -> ...`.

    What a slot reads of the statistics is computed for it, and nothing else is; see
    `learners.liveness.fields_read`.

    Attributes:
        episode: B episodes.
        policy: of their tokens under the policy that is trained, before the update.
        reference: of their tokens under the reference policy; None without one.
    """

    episode: Episode
    policy: TokenStatistics = TokenStatistics()
    reference: TokenStatistics | None = None


@struct.dataclass
class TokenView:
    """What losses, regularisers and aggregations are given: `(view, ...) -> [n, t, S]`, rows, turns, tokens of a turn.

    A row is an episode, or one turn of it where turns do not see each other. All leaves are `[n, t, S]`. An aggregation
    is shown whole episodes before the model has read them: `log_prob` and `entropy` are None.

    Attributes:
        mask: bool, sampled tokens that count.
        turn: int32, of the episode.
        sequence: int32, the agent of the row (seat, transcript) whose token it is; those of one agent are a sequence.
        behavior_log_prob: float32, under the policy that acted.
        advantage: float32; None where nothing is credited (supervised training).
        success: bool, of the episode.
        group_success: float32, share of the episodes of the group that succeeded.
        demonstrated: bool, of a row that the policy did not sample (`Episode.control`), such as an expert's; None
            without such rows.
        log_prob: float32, under the policy that is trained; the only leaf with a gradient but for `entropy`.
        entropy: float32, of the distribution that the token comes from, in nats.
        reference_log_prob: float32, under the reference policy; None without one.
        sequence_log_ratio: float32, mean of `log_prob - behavior_log_prob` over the tokens of the sequence that count;
            None for an aggregation.
        num_sequences: of a row; static.
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
    """Episodes of a policy, and an expert's of the same tasks.

    Attributes:
        own: `Episode` of `n * G` rows, the G of a task one after the other.
        demonstration: `Episode` of n rows, the tasks in the same order; the tokens of the expert count as sampled.
    """

    own: Episode
    demonstration: Episode


@struct.dataclass
class Pairs:
    """Episodes of which some are preferred to others.

    Attributes:
        episode: `Episode` of R rows.
        pair: int32 `[R]`, of a row that is compared, the row that is preferred to it; -1 for all others.
        desirable: bool `[R]`, the row is good by itself.
    """

    episode: Episode
    pair: Array
    desirable: Array


@struct.dataclass
class ChosenTasks:
    """Tasks of n groups of episodes.

    Attributes:
        key: typed keys `[n]`; equal keys and levels are equal tasks that start in the same state.
        level: int32 `[n]`, of difficulty; None where every task draws its own.
        item: int32 `[n]`, what the source counts them under.
    """

    key: Array
    level: Array | None
    item: Array


class TaskSource(NamedTuple):
    """Where the tasks of dialogues come from; it may remember what came out of them.

    Attributes:
        init: `(key, num_groups) -> state`, leaves `[num_groups, ...]`: devices split the state of a collector.
        choose: `(state, key, index int32 [n]) -> ChosenTasks` of the groups with these global indices; those of further
            rounds of a batch are beyond `num_groups`.
        update: `(state, chosen, success float32 [n], axis_name=None) -> state`; the share of the episodes of each group
            that succeeded.
    """

    init: Callable[[Array, int], PyTree]
    choose: Callable[[PyTree, Array, Array], ChosenTasks]
    update: Callable[..., PyTree]


class Tokenizer(NamedTuple):
    """Text to token ids and back.

    Attributes:
        name: for messages.
        encode: `(text) -> list of ids`, without marks.
        decode: `(ids) -> text`; marks become nothing.
        vocab_size: ids are below it.
        marks: ids of the control tokens by name: "pad", "end" (of an action), "observation" (opens one), "think" (opens
            a thought), "act" (opens an action, closes a thought).
        data: what `language.tokenizers.restore` makes the same tokenizer from, as bytes.
        stops: further tokens that end what a policy says, beside the mark "end".
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
        """Returns all tokens that end what a policy says."""
        return (self.marks["end"], *self.stops)

    def is_end(self, tokens: Array) -> Array:
        """Returns where tokens, of any shape, end what a policy says, bool."""
        return reduce(or_, (tokens == end for end in self.ends))


class ChatTokens(NamedTuple):
    """A conversation as a chat template writes it; lists with an entry per token.

    Attributes:
        tokens: ids.
        message: index of the assistant's message that says the token; -1 for what it reads.
        thought: whether the token is part of a thought, tags included.
        num_lost: thoughts of the conversation that the template leaves out.
    """

    tokens: list[int]
    message: list[int]
    thought: list[bool]
    num_lost: int


class ChatTemplate(NamedTuple):
    """Conversations as a checkpoint was taught them, see `language.chat_template`.

    Attributes:
        encode: `(messages, tools=()) -> ChatTokens` of a whole conversation.
        encode_prompt: `(messages, tools=()) -> list of ids` up to where the assistant speaks next.
        end: token that closes what the assistant says.
        stops: all tokens that end it, `end` included.
    """

    encode: Callable[..., ChatTokens]
    encode_prompt: Callable[..., list[int]]
    end: int
    stops: tuple[int, ...]


@struct.dataclass
class CausalMask:
    """Which tokens attend to which, in numbers per token in place of a bit per pair; see `networks.attention`.

    A token sees tokens that are there and no later than itself: the prompt, and its own agent's of recent turns.

    Attributes:
        turn: int32 `[B, W]`, the number of a token's turn among those of its agent, -1 for the prompt.
        agent: int32 `[B, W]`.
        present: bool `[B, W]`, False for padding.
        context_turns: own turns that are seen, the present one included.
    """

    turn: Array
    agent: Array
    present: Array
    context_turns: int = struct.field(pytree_node=False)


class LanguageModel(NamedTuple):
    """A causal model of token sequences; masks give which tokens attend to which.

    A `mask` is a bool for every pair, True where the query (second axis) sees the key (third axis), or a `CausalMask`
    of the keys, of which `networks.attention.dense_mask` makes these bits.

    Attributes:
        init: `(key) -> params`; see `pretrained`.
        apply: `(params, tokens [B, L], *, positions [B, L], mask [B, L, L]) -> hidden [B, L, D]`.
        init_cache: `(batch_size, length) -> cache` of W = length keys and values per row.
        extend: `(params, cache, tokens [B, S], *, positions [B, S], index, mask [B, S, W]) ->
            (cache, hidden [B, S, D])`; writes the S keys and values at `index` (int32 `[]`, the same for all rows) and
            attends to the cache after that.
        logits: `(params, hidden [..., D]) -> [..., V]`.
        value: `(params, hidden [..., D]) -> [...]`; None without a value head.
        vocab_size: V.
        max_positions: positions must be below it; None when any will do.
        pretrained: `init` reads a checkpoint on the host. Traced, it gives shapes filled with NaN, since the weights
            would be constants of the program: call it outside, and pass on what it gives.
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
    """A language model that speaks the words of one text world.

    Attributes:
        model: the network.
        tokenizer: its tokens.
        lexicon: `language.lexicon.Lexicon`, the words of the world in these tokens.
        layout: of its episodes.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    lexicon: Any
    layout: Layout

    @property
    def init(self) -> Callable[[Array], Params]:
        """Returns `(key) -> params`."""
        return self.model.init
