"""Training and sampling of a Qwen2 model by transformers and PyTorch, on the CPU or a GPU, from random parameters."""

from collections.abc import Mapping
from typing import Any

from jaxagents.benchmarks.timing import Subject
from jaxagents.environments.adapters.importing import import_suite


def torch_training_subject(
    name: str,
    sizes: Mapping[str, Any],
    *,
    device: str,
    batch_size: int,
    sequence_tokens: int,
    microbatch_rows: int,
    num_updates: int,
) -> Subject:
    """Times updates with float32 parameters, bfloat16 products (autocast), fused AdamW and clipping; unit: tokens read.

    Args:
        name: row of the table.
        sizes: settings of `networks.decoder.Decoder` and `vocab_size`.
        device: as PyTorch names it.
        batch_size: sequences of an update.
        sequence_tokens: of each.
        microbatch_rows: sequences at a time; the logits of all their tokens exist at once.
        num_updates: of a call.

    Returns:
        The subject.

    Raises:
        ModuleNotFoundError: `torch` or `transformers` is not installed.
    """
    torch = import_suite("torch", "hf")
    model = _model(torch, sizes, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=device == "cuda")
    tokens = torch.randint(0, sizes["vocab_size"], (num_updates, batch_size, sequence_tokens), device=device)

    def update(batch: Any) -> None:
        optimizer.zero_grad()
        for rows in batch.split(microbatch_rows):
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = model(input_ids=rows, labels=rows, use_cache=False).loss
            (loss * (len(rows) / batch_size)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def run() -> float:
        for batch in tokens:
            update(batch)
        _wait(torch, device)
        return num_updates * batch_size * sequence_tokens

    run()
    return Subject(name=name, run=run, compile_seconds=0.0)


def torch_generation_subject(
    name: str, sizes: Mapping[str, Any], *, device: str, batch_size: int, prompt_tokens: int, num_tokens: int
) -> Subject:
    """Times `generate` in bfloat16 with its cache, nothing of which stops early; unit: new tokens.

    Args:
        name: row of the table.
        sizes: settings of `networks.decoder.Decoder` and `vocab_size`.
        device: as PyTorch names it.
        batch_size: sequences sampled side by side.
        prompt_tokens: of each.
        num_tokens: new ones of each.

    Returns:
        The subject.

    Raises:
        ModuleNotFoundError: `torch` or `transformers` is not installed.
    """
    torch = import_suite("torch", "hf")
    model = _model(torch, sizes, device).to(torch.bfloat16).eval()
    prompt = torch.randint(0, sizes["vocab_size"], (batch_size, prompt_tokens), device=device)
    amount = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens}

    def run() -> float:
        with torch.inference_mode():
            model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0, **amount)
        _wait(torch, device)
        return batch_size * num_tokens

    run()
    return Subject(name=name, run=run, compile_seconds=0.0)


def _model(torch: Any, sizes: Mapping[str, Any], device: str) -> Any:
    """Makes a model with the settings of a `Decoder` whose queries, keys and values have a bias."""
    transformers = import_suite("transformers", "hf")
    config = transformers.Qwen2Config(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["features"],
        intermediate_size=sizes["hidden_features"],
        num_hidden_layers=sizes["num_layers"],
        num_attention_heads=sizes["num_heads"],
        num_key_value_heads=sizes["num_kv_heads"],
        rope_parameters={"rope_type": "default", "rope_theta": sizes["rotary_base"]},
        tie_word_embeddings=True,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device(device):  # Random numbers of a GPU are quick to draw.
        return transformers.Qwen2ForCausalLM(config)


def _wait(torch: Any, device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
