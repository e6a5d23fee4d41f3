"""Tokenizers: text to token ids and back. Each is made from the bytes that `restore` reads, and has no other state.

Every factory takes the words of a world first. Text is preserved up to whitespace: "go  to " is "go to", except at byte
level, which preserves every character.
"""

import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from jaxagents.types import Tokenizer

MARKS = ("pad", "end", "observation", "think", "act")
"""Control tokens; in our own tokenizers they have the ids 0 to 4."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
"""Files in which a folder may have its tokenizer; one of them is enough."""
_FORMAT, _VERSION = "jaxagents.tokenizer", 1


def word_level(words: Sequence[str]) -> Tokenizer:
    """Makes a tokenizer with one token per phrase, for the smallest vocabulary and the shortest sequences.

    Text is read from left to right, taking the longest phrase; `encode` refuses text that does not consist of phrases.

    Args:
        words: phrases without repetitions.

    Returns:
        The tokenizer; the id of a phrase is its index plus five.

    Raises:
        ValueError: see `require_phrases`.
    """
    return restore(_pack("word_level", json.dumps(require_phrases(words)).encode()))


def byte_level(words: Sequence[str] = ()) -> Tokenizer:
    """Makes a tokenizer with one token per UTF-8 byte, which reads and writes any text.

    Args:
        words: not used, since any text can be encoded.

    Returns:
        The tokenizer; the id of a byte is the byte plus five. Invalid UTF-8 is decoded to U+FFFD.

    Examples:
        >>> tokenizer = byte_level()
        >>> tokenizer.encode("hé"), tokenizer.decode(tokenizer.encode("hé"))
        ([109, 200, 174], 'hé')
    """
    del words
    return restore(_pack("byte_level"))


def train_sentencepiece(
    words: Sequence[str],
    *,
    vocab_size: int,
    transcripts: str | Path | Sequence[str] = (),
    model_type: str = "unigram",
    whole_words: bool = True,
) -> Tokenizer:
    """Trains a SentencePiece model in memory; the same arguments give the same bytes.

    The vocabulary contains the marks, an unknown piece and every character of the text; then the phrases, the most
    frequent first, as far as they fit, each as one piece (a user-defined symbol, matched before other pieces, the
    longest first); then learned pieces for text that the phrases do not cover. Other characters become unknown pieces.

    Args:
        words: phrases without repetitions.
        vocab_size: upper bound; the vocabulary is smaller if there is nothing left to learn.
        transcripts: further training text, a file or lines.
        model_type: "unigram" or "bpe".
        whole_words: whether phrases are pieces. If False, all pieces are learned, and none crosses a space. If the
            vocabulary cannot contain most of the phrases, this (with "bpe") gives shorter sequences.

    Returns:
        The tokenizer.

    Raises:
        ValueError: see `require_phrases`; or there is no text, the vocabulary cannot contain the marks and characters,
            or the model type is unknown.

    References:
        Kudo and Richardson (2018), SentencePiece: A simple and language independent subword tokenizer; Kudo (2018) for
        the unigram model, Sennrich et al. (2016) for byte-pair encoding.
    """
    words = [" ".join(word.split()) for word in require_phrases(words)]
    lines = Path(transcripts).read_text().splitlines() if isinstance(transcripts, str | Path) else list(transcripts)
    lines = [" ".join(line.split()) for line in lines]
    characters = sorted(set("".join([*words, *lines])) - {" "})
    smallest = len(MARKS) + 2 + len(characters)  # Includes the unknown piece and the space.
    if not characters:
        raise ValueError("`words` or `transcripts` must hold text to train on, got none.")
    if vocab_size < smallest:
        raise ValueError(
            f"`vocab_size` must be at least {smallest}, for {len(MARKS) + 1} marks and {len(characters) + 1} "
            f"characters, got {vocab_size}; try {smallest + len(words)}, which holds every phrase."
        )
    if model_type not in ("unigram", "bpe"):
        raise ValueError(f"`model_type` must be 'unigram' or 'bpe', got {model_type!r}.")
    counts = Counter({word: sum(f" {line} ".count(f" {word} ") for line in lines) for word in words})
    whole = [word for word, _ in counts.most_common(vocab_size - smallest)] if whole_words else []
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        # Training fails if the phrases cover all of the text, so one character is added.
        sentence_iterator=iter([2 * characters[0], *words, *filter(None, lines)]),
        model_writer=model,
        model_type=model_type,
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        character_coverage=1.0,
        required_chars="".join([_SPACE, *characters]),
        normalization_rule_name="identity",
        control_symbols=[f"<{mark}>" for mark in MARKS[1:]],
        user_defined_symbols=[_SPACE + word.replace(" ", _SPACE) for word in whole],
        pad_id=0,
        unk_id=len(MARKS),
        bos_id=-1,
        eos_id=-1,
        max_sentence_length=2**20,
        num_threads=1,  # Makes the order of sums deterministic.
        minloglevel=2,  # Errors only.
    )
    return restore(_pack("sentencepiece", model.getvalue()))


def from_huggingface(
    words: Sequence[str],
    source: Any,
    *,
    marks: Mapping[str, str] | None = None,
    add_special_tokens: bool = False,
) -> Tokenizer:
    """Makes a tokenizer from one of `transformers` or `tokenizers`, which is not modified.

    Args:
        words: not used; the vocabulary is given.
        source: folder for `transformers.AutoTokenizer` (nothing is downloaded), a tokenizer of `transformers` with a
            fast backend, or a `tokenizers.Tokenizer`.
        marks: tokens of marks, by default the padding token for "pad", the end-of-sequence token for "end", and
            "<|observation|>", "<|think|>", "<|act|>". Any token is possible; only "pad" may share one with another
            mark.
        add_special_tokens: whether to add missing marks; the model's embeddings must then have rows for them.

    Returns:
        The tokenizer; special tokens in a text are read as plain characters.

    Raises:
        ValueError: a mark is unknown or not in the vocabulary, two marks have the same token, there is no fast backend
            or no source, or the folder does not exist, has no tokenizer, or has one that cannot be loaded.
    """
    del words
    from tokenizers import Tokenizer as Backend

    if source is None:
        raise ValueError("`source` must be a folder or a name, got none; try model.path=DIR, or tokenizer.source=DIR.")
    if isinstance(source, str | Path):
        source = _load_tokenizer(source)
    given = source if isinstance(source, Backend) else getattr(source, "backend_tokenizer", None)
    if given is None:
        raise ValueError(f"`source` must have a fast backend, got {type(source).__name__}; try its fast class.")
    backend = Backend.from_str(given.to_str())
    tokens = {mark: f"<|{mark}|>" for mark in MARKS}
    own = {"pad": getattr(source, "pad_token", None), "end": getattr(source, "eos_token", None)}
    tokens |= {mark: token for mark, token in own.items() if token} | dict(marks or {})
    if unknown := set(tokens) - set(MARKS):
        raise ValueError(f"`marks` must be among {', '.join(MARKS)}, got {', '.join(sorted(unknown))}.")
    if add_special_tokens:
        backend.add_special_tokens([token for token in tokens.values() if backend.token_to_id(token) is None])
    ids = {mark: backend.token_to_id(token) for mark, token in tokens.items()}
    for mark, i in ids.items():
        if i is None:
            raise ValueError(
                f"`marks` must be in the vocabulary, got {tokens[mark]!r} for {mark!r}, which is not; try "
                f"`add_special_tokens=True`, or name a token that is: marks={{{mark!r}: ...}}."
            )
    if len({ids[mark] for mark in MARKS[1:]}) < len(MARKS) - 1:
        raise ValueError(f"`marks` must be different tokens, got {tokens}; try `add_special_tokens=True`.")
    name = getattr(source, "name_or_path", "") or "huggingface"
    return restore(_pack("huggingface", backend.to_str().encode(), name=name, marks=ids))


def load_tokenizer(folder: Path) -> Any:
    """Loads a tokenizer of `transformers` from a folder.

    Raises:
        ValueError: one of its files is damaged or has an unknown format.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except ImportError:
        raise
    except Exception as error:  # Files of unknown formats can raise any error.
        lines = str(error).splitlines() if isinstance(error, OSError | ValueError) else []
        reason = lines[0] if lines else repr(error)
        raise ValueError(
            f"`source` must be a folder with a tokenizer, got {folder}, which cannot be loaded: {reason}"
        ) from error


def _load_tokenizer(source: str | Path) -> Any:
    """Loads a tokenizer of `transformers` from a folder; nothing is downloaded."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        raise ValueError(
            f"`model.path`, or `tokenizer.source`, must be the folder of a checkpoint, got {source}; there is no such "
            "folder, and nothing is downloaded."
        )
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(
            f"`source` must hold {TOKENIZER_FILES[0]}, got none in {folder}; copy it from where the checkpoint is, or "
            "write it by the tokenizer's `save_pretrained`."
        )
    return load_tokenizer(folder)


def with_marks(backend: Any, marks: Mapping[str, int], *, name: str, stops: Sequence[int] = ()) -> Tokenizer:
    """Makes a tokenizer from a `tokenizers.Tokenizer` with given control tokens, several of which may be the same.

    Args:
        backend: tokenizer that already contains all tokens.
        marks: ids of the control tokens by name.
        name: name for messages.
        stops: further tokens that end the policy's output.

    Returns:
        The tokenizer.
    """
    others = {"stops": list(stops)} if stops else {}
    return restore(_pack("huggingface", backend.to_str().encode(), name=name, marks=dict(marks), **others))


def restore(data: bytes) -> Tokenizer:
    """Makes the tokenizer with the given `data`.

    Args:
        data: a line of JSON (format, version, kind), followed by the content for that kind.

    Returns:
        The tokenizer.

    Raises:
        ValueError: the bytes are of another format, or of an unknown kind or version.
    """
    line, _, payload = data.partition(b"\n")
    try:
        header = json.loads(line)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise ValueError(f"`data` must start with a header of {_FORMAT}, got {line[:40]!r}; try `Tokenizer.data`.")
    if header["version"] != _VERSION or header["kind"] not in _READERS:
        raise ValueError(
            f"`data` must be version {_VERSION} of {', '.join(_READERS)}, got version {header['version']} of "
            f"{header['kind']}; try the jaxagents that wrote it."
        )
    encode, decode, vocab_size = _READERS[header["kind"]](payload)
    marks = header.get("marks") or {mark: i for i, mark in enumerate(MARKS)}
    stops = tuple(header.get("stops", ()))
    hidden = frozenset((*marks.values(), *stops))
    return Tokenizer(
        name=header.get("name", header["kind"]),
        encode=encode,
        decode=lambda ids: decode([i for i in map(int, ids) if i not in hidden]),
        vocab_size=vocab_size,
        marks=marks,
        data=data,
        stops=stops,
    )


def require_phrases(words: Sequence[str]) -> tuple[str, ...]:
    """Returns the words as a tuple, if text that consists of them can be read back.

    Raises:
        ValueError: a word is empty, has whitespace around it, or occurs twice, up to the whitespace in it.
    """
    words = tuple(words)
    for word in words:
        if not word or word != word.strip():
            raise ValueError(f"`words` must be text without white space around it, got {word!r}.")
    if repeated := [word for word, count in Counter(" ".join(word.split()) for word in words).items() if count > 1]:
        raise ValueError(f"`words` must be different, got {repeated[0]!r} twice.")
    return words


def phrase_reader(words: Sequence[str]) -> Callable[[str], list[int]]:
    """Makes the function that reads text as phrases, from left to right, taking the longest phrase.

    Args:
        words: phrases; whitespace separates their parts.

    Returns:
        `(text) -> indices into words`; raises a ValueError if nothing matches.
    """
    index = {tuple(word.split()): i for i, word in enumerate(words)}
    longest = max(map(len, index), default=0)

    def read(text: str) -> list[int]:
        parts, found, start = text.split(), [], 0
        while start < len(parts):
            sizes = (size for size in range(longest, 0, -1) if tuple(parts[start : start + size]) in index)
            size = next(sizes, 0)
            if not size:
                raise ValueError(f"`text` must be made of the words, got {parts[start]!r} in {text!r}.")
            found.append(index[tuple(parts[start : start + size])])
            start += size
        return found

    return read


_SPACE = "\u2581"  # SentencePiece's symbol for a space.


def _pack(kind: str, payload: bytes = b"", **header: Any) -> bytes:
    header = {"format": _FORMAT, "version": _VERSION, "kind": kind} | header
    return json.dumps(header).encode() + b"\n" + payload


# Readers return `encode`, `decode` for ids without marks, and the size of the vocabulary.


def _read_word_level(payload: bytes) -> tuple[Callable, Callable, int]:
    words = json.loads(payload)
    read, offset = phrase_reader(words), len(MARKS)
    return (
        lambda text: [i + offset for i in read(text)],
        lambda ids: " ".join(words[i - offset] for i in ids),
        offset + len(words),
    )


def _read_byte_level(payload: bytes) -> tuple[Callable, Callable, int]:
    del payload
    offset = len(MARKS)
    return (
        lambda text: [byte + offset for byte in text.encode()],
        lambda ids: bytes(i - offset for i in ids).decode(errors="replace"),
        offset + 256,
    )


def _read_sentencepiece(payload: bytes) -> tuple[Callable, Callable, int]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=payload)
    return lambda text: processor.encode(" ".join(text.split())), processor.decode, processor.get_piece_size()


def _read_huggingface(payload: bytes) -> tuple[Callable, Callable, int]:
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_str(payload.decode())
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = True  # As plain characters: text must not be able to forge a mark.
    return (
        lambda text: backend.encode(text, add_special_tokens=False).ids,
        backend.decode,
        max(backend.get_vocab().values()) + 1,
    )


_READERS = {
    "word_level": _read_word_level,
    "byte_level": _read_byte_level,
    "sentencepiece": _read_sentencepiece,
    "huggingface": _read_huggingface,
}
