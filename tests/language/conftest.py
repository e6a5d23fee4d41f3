"""Chat templates shaped like those of public families of checkpoints, with what the assistant says marked.

They open, trim, merge, prefix and refuse as the families do. `{% generation %}` is how `transformers` tells which
tokens the assistant says; `plain` takes it out, which is how checkpoints come.
"""

import re
from typing import NamedTuple

import pytest


class Family(NamedTuple):
    """A template, the special tokens of its tokenizer, and those that begin and end a text."""

    template: str
    special: tuple[str, ...]
    bos: str | None
    eos: str


def model(expression):
    """Returns the part of a template that writes what the assistant says."""
    return "{%- generation %}{{- " + expression + " }}{%- endgeneration %}"


def plain(template):
    """Returns a template without the marks around what the assistant says."""
    return re.sub(r"\{%-? *(?:end)?generation *-?%\}", "", template)


_CALLS = r"""
    {%- set ns.content = ns.content or '' %}
    {%- for call in m.tool_calls or [] %}
      {%- set call = call.function or call %}
      {%- set one = '{"name": "' + call.name + '", "arguments": ' + (call.arguments | tojson) + '}' %}
      {%- set before = '\n' if ns.content or not loop.first else '' %}
      {%- set ns.content = ns.content + before + '<tool_call>\n' + one + '\n</tool_call>' %}
    {%- endfor %}"""
_RESULTS = r"""
    {{- '<|im_start|>user' if messages[loop.index0 - 1].role != 'tool' else '' }}
    {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
    {{- '<|im_end|>\n' if loop.last or messages[loop.index0 + 1].role != 'tool' else '' }}"""
_TOOLS = r"""
  {%- if tools %}{{- '\n\n# Tools' }}{%- for tool in tools %}{{- '\n' + (tool | tojson) }}{%- endfor %}{%- endif %}"""

# A default text of the system, calls and results of tools in the turns of assistant and user.
QWEN_25 = (
    r"""
{%- set ns = namespace(content='') %}
{%- set given = messages[0].role == 'system' %}
{{- '<|im_start|>system\n' + (messages[0].content if given else 'You are Qwen, created by Alibaba Cloud.') }}"""
    + _TOOLS
    + r"""
{{- '<|im_end|>\n' }}
{%- for m in messages %}
  {%- if m.role == 'tool' %}"""
    + _RESULTS
    + r"""
  {%- elif m.role == 'assistant' %}
    {%- set ns.content = m.content %}"""
    + _CALLS
    + r"""
    {{- '<|im_start|>assistant\n' }}"""
    + model("ns.content + '<|im_end|>'")
    + r"""{{- '\n' }}
  {%- elif not (loop.first and given) %}
    {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
)
# Thoughts of turns before the user's last question are left out, and the last turn always has some.
QWEN_3 = (
    r"""
{%- set ns = namespace(content='', thought='', last=messages | length) %}
{%- set given = messages[0].role == 'system' %}
{%- if given or tools %}
  {{- '<|im_start|>system\n' + (messages[0].content if given else '') }}"""
    + _TOOLS
    + r"""
  {{- '<|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
  {%- if m.role == 'tool' %}"""
    + _RESULTS
    + r"""
  {%- elif m.role == 'assistant' %}
    {%- set ns.content = m.content if m.content is string else '' %}
    {%- set ns.thought = m.reasoning_content if m.reasoning_content is string else '' %}
    {%- if '</think>' in ns.content and not ns.thought %}
      {%- set ns.thought = ns.content.split('</think>')[0].split('<think>')[-1].strip('\n') %}
      {%- set ns.content = ns.content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}"""
    + _CALLS
    + r"""
    {%- if loop.index0 > ns.last and (loop.last or ns.thought) %}
      {%- set ns.content = '<think>\n' + ns.thought.strip('\n') + '\n</think>\n\n' + ns.content.lstrip('\n') %}
    {%- endif %}
    {{- '<|im_start|>assistant\n' }}"""
    + model("ns.content + '<|im_end|>'")
    + r"""{{- '\n' }}
  {%- elif not (loop.first and given) %}
    {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n' }}
  {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""
)
# Texts are trimmed, tools stand in the first turn of the user, results in a role of their own.
LLAMA_3 = (
    r"""{{- bos_token }}
{%- macro turn(role, text) %}{{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' + text }}{%- endmacro %}
{%- set given = messages[0].role == 'system' %}
{{- turn('system', 'Today Date: 26 Jul 2024\n\n' + (messages[0].content | trim if given else '') + '<|eot_id|>') }}
{%- for m in messages %}
  {%- if m.role == 'assistant' and m.tool_calls %}
    {%- set call = m.tool_calls[0].function %}
    {{- turn('assistant', '') }}"""
    + model(r"""'{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}<|eot_id|>'""")
    + r"""
  {%- elif m.role == 'assistant' %}
    {{- turn('assistant', '') }}"""
    + model("(m.content | trim) + '<|eot_id|>'")
    + r"""
  {%- elif m.role == 'tool' %}
    {{- turn('ipython', m.content + '<|eot_id|>') }}
  {%- elif not (loop.first and given) %}
    {%- set asks = tools and loop.index0 == (1 if given else 0) %}
    {{- turn(m.role, ((tools | tojson) + '\n\n' if asks else '') + (m.content | trim) + '<|eot_id|>') }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- turn('assistant', '') }}{%- endif %}"""
)
_ALTERNATE = r"""
{%- for m in messages %}
  {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{- raise_exception('Roles must alternate') }}{%- endif %}
{%- endfor %}"""
# The text of the system inside of the user's first turn; a space after and before what is said.
LLAMA_2 = (
    r"""
{%- set system = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' if messages[0].role == 'system' else '' %}
{%- set messages = messages[1:] if system else messages %}"""
    + _ALTERNATE
    + r"""
{%- for m in messages %}
  {%- if m.role == 'user' %}
    {{- bos_token + '[INST] ' + ((system if loop.first else '') + m.content) | trim + ' [/INST]' }}
  {%- else %}"""
    + model("' ' + (m.content | trim) + ' ' + eos_token")
    + r"""{%- endif %}
{%- endfor %}"""
)
# No role of the system, another name for the assistant's.
GEMMA = (
    r"""{{- bos_token }}
{%- if messages[0].role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}"""
    + _ALTERNATE
    + r"""
{%- for m in messages %}
  {{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}
  {%- if m.role == 'assistant' %}"""
    + model("(m.content | trim) + '<end_of_turn>'")
    + r"""{{- '\n' }}
  {%- else %}{{- (m.content | trim) + '<end_of_turn>\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}"""
)
# The text of the system and the tools stand in the last turn of the user.
MISTRAL = (
    r"""{{- bos_token }}
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- set messages = messages[1:] if system else messages %}
{%- set ns = namespace(last=0, turn=0) %}
{%- for m in messages %}
  {%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}
  {%- if m.role == 'user' or m.role == 'assistant' and not m.tool_calls %}
    {%- if (m.role == 'user') != (ns.turn % 2 == 0) %}{{- raise_exception('Roles must alternate') }}{%- endif %}
    {%- set ns.turn = ns.turn + 1 %}
  {%- endif %}
{%- endfor %}
{%- for m in messages %}
  {%- if m.role == 'user' %}
    {{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' if tools and loop.index0 == ns.last else '' }}
    {{- '[INST]' + (system + '\n\n' if system and loop.index0 == ns.last else '') + m.content + '[/INST]' }}
  {%- elif m.role == 'tool' %}
    {{- '[TOOL_RESULTS]{"content": ' + m.content + '}[/TOOL_RESULTS]' }}
  {%- elif m.tool_calls %}
    {%- set call = m.tool_calls[0].function %}"""
    + model(
        r"""'[TOOL_CALLS][{"name": "' + call.name + '", "arguments": ' + (call.arguments | tojson) + '}]' + eos_token"""
    )
    + r"""
  {%- else %}"""
    + model("m.content + eos_token")
    + r"""{%- endif %}
{%- endfor %}"""
)

# Pieces that are tokens for themselves, as in Llama 3 and Qwen: line ends stay together.
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>")
_LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>")
_TOOL_TOKENS = ("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
FAMILIES = {
    "qwen_25": Family(QWEN_25, _QWEN, None, "<|im_end|>"),
    "qwen_3": Family(QWEN_3, _QWEN, None, "<|im_end|>"),
    "llama_3": Family(LLAMA_3, _LLAMA, "<|begin_of_text|>", "<|eot_id|>"),
    "llama_2": Family(LLAMA_2, ("<s>", "</s>"), "<s>", "</s>"),
    "gemma": Family(GEMMA, ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "<bos>", "<eos>"),
    "mistral": Family(MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]", *_TOOL_TOKENS), "<s>", "</s>"),
}


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory):
    """Returns `(family, marked=False) -> folder` of a tokenizer of bytes and some merges with the family's template."""
    import tokenizers
    import transformers

    made = {}

    def save(name, marked=False):
        if (name, marked) in made:
            return made[name, marked]
        family, backend = FAMILIES[name], tokenizers.Tokenizer(tokenizers.models.BPE())
        split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(_WORDS), "isolated")
        to_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, to_bytes])
        backend.decoder = tokenizers.decoders.ByteLevel()
        alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
        trainer = tokenizers.trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
        backend.train_from_iterator(["left right up down the opposite of hot the user\n\n system [INST]"], trainer)
        backend.add_special_tokens(list(family.special))
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token=family.bos, eos_token=family.eos
        )
        tokenizer.chat_template = family.template if marked else plain(family.template)
        made[name, marked] = tmp_path_factory.mktemp(name)
        tokenizer.save_pretrained(made[name, marked])
        return made[name, marked]

    return save
