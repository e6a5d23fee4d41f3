"""Conversations are written as `transformers` writes them, and what is learned in them is what the assistant says."""

import json
import shutil

import numpy as np
import pytest

from jaxagents.data.streams import encode
from jaxagents.data.trajectories import parse_line
from jaxagents.language.chat_template import make_chat_template, read_template

transformers = pytest.importorskip(
    "transformers", reason="needs the extra hf: chat templates are those of transformers"
)

FAMILIES = ("qwen_25", "qwen_3", "llama_3", "llama_2", "gemma", "mistral")

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


def user(text):
    return {"role": "user", "content": text}


def bot(text, **fields):
    return {"role": "assistant", "content": text, **fields}


SYSTEM = {"role": "system", "content": "be brief"}
CALL = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
RESULT = {"role": "tool", "tool_call_id": "call00001", "name": "weather", "content": "12"}
TURNS = [user("left?"), bot("left"), user("and now?"), bot("right"), user("so?"), bot("up")]
CONVERSATIONS = {
    "one turn": TURNS[:2],
    "a system": [SYSTEM, *TURNS[:2]],
    "three turns": TURNS,
    "a system and three turns": [SYSTEM, *TURNS],
    "two of the assistant in a row": [user("left?"), bot("left"), bot("right"), user("so?"), bot("up")],
    "spaces and lines": [user("  left? \n"), bot(" \nleft\n\n"), user("\n\nnow "), bot("  right  ")],
    "unicode": [user("naïve 🙂?"), bot("日本語 🙂 é")],
    "tags of thoughts": [
        user("2"),
        bot("<think>\nhm\n</think>\n\n4"),
        user("3"),
        bot("<think>\nwell\n</think>\n\n6"),
    ],
    "thoughts": [user("2"), bot("4", reasoning_content="hm"), user("3"), bot("6", reasoning_content="well")],
    "a tool": [user("weather?"), bot("", tool_calls=[CALL]), RESULT, bot("it is 12")],
    "a tool before": [
        *(SYSTEM, user("weather?"), bot("", tool_calls=[CALL]), RESULT, bot("it is 12"), user("thanks"), bot("bye"))
    ],
}
REFUSED = {  # By the templates themselves.
    "llama_2": ("two of the assistant in a row", "a tool", "a tool before"),
    "gemma": ("two of the assistant in a row", "a tool", "a tool before"),
    "mistral": ("two of the assistant in a row",),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_and_what_is_learned_are_those_of_the_template(chat_folder, family):
    marked = transformers.AutoTokenizer.from_pretrained(chat_folder(family, marked=True))
    chat, compared = make_chat_template(read_template(chat_folder(family))), 0
    for name, messages in CONVERSATIONS.items():
        tools = TOOLS if "tool" in name else []
        row = {"messages": messages, "tools": tools} if tools else {"messages": messages}
        (trajectory,) = [parse_line(json.dumps(row).encode())]
        if name in REFUSED.get(family, ()):
            with pytest.raises(ValueError, match="`chat_template` of .* must take the messages, got the roles"):
                encode(trajectory, None, chat=chat)
            continue
        if family == "gemma" and messages[0]["role"] == "system":  # Its text is the first paragraph of the user's.
            messages = [user(f"be brief\n\n{messages[1]['content']}"), *messages[2:]]
        wanted = marked.apply_chat_template(
            messages, tools=tools or None, return_dict=True, return_assistant_tokens_mask=True
        )
        (sequence,) = encode(trajectory, None, chat=chat)
        assert sequence.tokens == wanted["input_ids"], name
        assert np.array_equal(np.asarray(sequence.loss_weight) > 0, np.asarray(wanted["assistant_masks"]) > 0), name
        compared += 1
    assert compared == len(CONVERSATIONS) - len(REFUSED.get(family, ()))


def test_thoughts_that_a_template_leaves_out_are_counted_or_written_between_tags(chat_folder):
    messages = CONVERSATIONS["thoughts"]
    lost = {name: read_template(chat_folder(name)) for name in ("qwen_25", "qwen_3")}
    assert {name: make_chat_template(reader).encode(messages).num_lost for name, reader in lost.items()} == {
        "qwen_25": 2,  # The field is not known.
        "qwen_3": 1,  # Of the earlier turn.
    }
    thinker = read_template(chat_folder("qwen_25"), thinks=True)
    kept = make_chat_template(thinker).encode(messages)
    assert kept.num_lost == 0
    thoughts = [token for token, thought in zip(kept.tokens, kept.thought) if thought]
    assert thinker.tokenizer.decode(thoughts) == "<think>\nhm\n</think><think>\nwell\n</think>"


def test_a_template_that_marks_what_is_said_is_believed(chat_folder):
    marked, plain = (read_template(chat_folder("qwen_25", marked=marked)) for marked in (True, False))
    one, other = (make_chat_template(reader).encode(CONVERSATIONS["three turns"]) for reader in (marked, plain))
    assert one == other and set(one.message) == {-1, 1, 3, 5}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", '{"version": "1.0"}', "`source` must be a folder with a tokenizer, got .*, which cannot be"),
        ("tokenizer.json", "not json", "`source` must be a folder with a tokenizer, got .*, which cannot be"),
        ("tokenizer_config.json", "[1]", "`source` must be a folder with a tokenizer, got .*, which cannot be"),
        ("chat_template.jinja", "{% if", "`chat_template` of .* must take the messages, got the roles user, assistant"),
        ("generation_config.json", "{", "generation_config.json` must be JSON, got "),
        ("generation_config.json", "[1]", "generation_config.json` must hold a JSON object, got list"),
        ("generation_config.json", '{"eos_token_id": "end"}', "must be a token or a list of tokens, got 'end'"),
        ("generation_config.json", '{"eos_token_id": [[1]]}', "must be a token or a list of tokens, got "),
    ],
)
def test_damaged_files_of_a_checkpoint_are_named(chat_folder, tmp_path, name, content, message):
    folder = shutil.copytree(chat_folder("qwen_25"), tmp_path / "copy")
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        read_template(folder)
    assert "\n" not in str(error.value)
