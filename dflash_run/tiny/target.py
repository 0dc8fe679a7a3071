"""Trains the small target and lets it answer prompts."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from dflash_run.data.bytelevel import BOS, EOS, VOCAB
from dflash_run.tiny.sizes import Sizes
from dflash_run.tiny.source import U8, conversations, windows

Told = Callable[[str], None]
_PEAK: Final = 3e-3
_TOGETHER: Final = 256
"""Prompts answered at once."""


def train_target(text: U8, sizes: Sizes, seed: int, told: Told) -> Any:
    """A small Qwen3 that continues `text` (uint8 bytes): prompt as the user's turn, the rest as its answer."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=sizes.hidden,
        intermediate_size=3 * sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=max(1, sizes.heads // 2),
        head_dim=sizes.hidden // sizes.heads,
        max_position_embeddings=2048,
        bos_token_id=BOS,
        eos_token_id=EOS,
        architectures=["Qwen3ForCausalLM"],
    )
    model: Any = transformers.Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_PEAK, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _PEAK, total_steps=sizes.steps, pct_start=0.1)
    stream = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
    for step in range(sizes.steps):
        taken = windows(text, sizes.batch, sizes.prompt + sizes.response, stream)
        loss = _loss(model, torch.from_numpy(conversations(taken, sizes.prompt)), sizes.prompt)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 49 or step + 1 == sizes.steps:
            told(f"target: step {step + 1} of {sizes.steps}, loss {loss.item():.2f}")
    return model.eval()


def _loss(model: Any, ids: Tensor, prompt: int) -> Tensor:
    """Mean cross-entropy, nats, of every byte that another byte precedes and of the answer's first."""
    logits: Tensor = model(input_ids=ids).logits[:, :-1]
    labels = ids[:, 1:].clone()
    labels[labels >= BOS] = -100  # marks are given, never predicted
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


@torch.no_grad()
def answers(model: Any, text: U8, sizes: Sizes, seed: int, told: Told) -> Iterator[tuple[str, str]]:
    """Prompts from random places of `text`, and the target's own answers to them at a low temperature."""
    torch.manual_seed(seed)
    stream = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
    unseen = [token for token in range(VOCAB) if token >= 128 or token < 9]  # nothing but ASCII text comes back
    for start in range(0, sizes.samples, _TOGETHER):
        taken = windows(text, min(_TOGETHER, sizes.samples - start), sizes.prompt, stream)
        ids = torch.from_numpy(conversations(taken, sizes.prompt))
        whole = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=sizes.response,
            do_sample=True,
            temperature=sizes.temperature,
            top_k=0,
            suppress_tokens=unseen,
            pad_token_id=EOS,
        )
        said = whole[:, ids.shape[1] :].numpy().astype(np.uint8)
        for row, answer in zip(taken.astype(np.uint8), said, strict=True):
            yield row.tobytes().decode("ascii"), answer.tobytes().decode("ascii")
        told(f"data: {min(start + _TOGETHER, sizes.samples)} of {sizes.samples} prompts answered")
