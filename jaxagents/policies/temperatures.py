"""Language policies at a temperature."""

from jaxagents.types import Array, LanguagePolicy, Params


def at_temperature(policy: LanguagePolicy, temperature: Array | float) -> LanguagePolicy:
    """Makes the policy whose logits are divided by a temperature, for sampling, scoring and training.

    Args:
        policy: policy with any parameters.
        temperature: positive number, which may be traced.

    Returns:
        The policy, with the same parameters.
    """

    def logits(params: Params, hidden: Array) -> Array:
        return policy.model.logits(params, hidden) / temperature

    return policy._replace(model=policy.model._replace(logits=logits))
