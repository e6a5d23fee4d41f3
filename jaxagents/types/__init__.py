"""Data that crosses module borders, and the pairs of functions that compose.

Shape letters: T time, B batch of environments, N agents or players, A actions. Reinforcement-learning arrays are
time-first, `[T, B, ...]`. Every record of functions is static and hashable by identity; every record of arrays is a
frozen pytree.
"""

from jaxagents.types.environments import (
    Array,
    Box,
    Carry,
    Discrete,
    Environment,
    Params,
    PyTree,
    State,
    Task,
    TextFace,
    TimeStep,
)
from jaxagents.types.language import (
    Demonstrated,
    Episode,
    EpisodeView,
    LanguageModel,
    LanguagePolicy,
    Layout,
    Tokenizer,
    TokenStatistics,
    TokenView,
)
from jaxagents.types.learning import (
    REPLICATED,
    ActorCritic,
    Agent,
    Collector,
    Learner,
    Mean,
    Metrics,
    Policy,
    Remembering,
    Rollout,
    Transition,
)

__all__ = [
    "REPLICATED",
    "ActorCritic",
    "Agent",
    "Array",
    "Box",
    "Carry",
    "Collector",
    "Demonstrated",
    "Discrete",
    "Environment",
    "Episode",
    "EpisodeView",
    "LanguageModel",
    "LanguagePolicy",
    "Layout",
    "Learner",
    "Mean",
    "Metrics",
    "Params",
    "Policy",
    "PyTree",
    "Remembering",
    "Rollout",
    "State",
    "Task",
    "TextFace",
    "TimeStep",
    "TokenStatistics",
    "TokenView",
    "Tokenizer",
    "Transition",
]
