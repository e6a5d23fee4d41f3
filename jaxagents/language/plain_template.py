"""A chat template and a tokenizer for models that are trained from scratch, in the format of Qwen's."""

from collections.abc import Sequence
from pathlib import Path

from jaxagents.language.chat_template import TemplateReader, make_reader

_END = "<|im_end|>"
_SPECIAL = ("<|endoftext|>", "<|im_start|>", _END)
_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_TEMPLATE = r"""
{%- set given = messages[0].role == 'system' %}
{%- if given or tools %}
  {{- '<|im_start|>system\n' + (messages[0].content if given else '') }}
  {%- for tool in tools or [] %}{{- '\n' + (tool | tojson) }}{%- endfor %}
  {{- '<|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
  {%- if m.role == 'tool' %}
    {{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' else '' }}
    {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
    {{- '<|im_end|>\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' }}
  {%- elif not (loop.first and given) %}
    {{- '<|im_start|>' + m.role + '\n' + (m.content or '') }}
    {%- for call in m.tool_calls or [] %}
      {%- set call = call.function or call %}
      {{- '\n' if m.content or not loop.first else '' }}
      {{- '<tool_call>\n{"name": "' + call.name + '", "arguments": ' + (call.arguments | tojson) + '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""

_FRAMES = (  # Text around messages, repeated often enough that training makes tokens of it.
    *("system\n", "user\n", "assistant\n", '\n{"name": "', '", "arguments": {"', '"}}\n'),
) * 8


def make_plain_reader(texts: Sequence[str], *, vocab_size: int = 512) -> TemplateReader:
    """Trains a byte-pair tokenizer on texts; the same texts give the same tokens.

    Args:
        texts: texts that will be encoded, such as prompts and answers.
        vocab_size: largest size of the vocabulary; all text can be written with at least 263.

    Returns:
        The reader of the tokenizer's chat template.

    Raises:
        ValueError: the vocabulary is too small for the bytes and the marks.
    """
    smallest = 256 + len(_SPECIAL) + len(_TAGS)
    if vocab_size < smallest:
        raise ValueError(f"`vocab_size` must be at least {smallest}, for bytes and marks, got {vocab_size}; try 512.")
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size - len(_SPECIAL) - len(_TAGS),
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([*texts, *_FRAMES], trainer)
    backend.add_special_tokens([*_SPECIAL])
    backend.add_tokens([*_TAGS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=_END)
    tokenizer.chat_template = _TEMPLATE
    return make_reader(tokenizer, Path("jaxagents.language.plain_template"))
