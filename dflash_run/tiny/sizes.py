"""How large the small target and its data are."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The default takes one to two minutes on two CPU cores."""

    layers: int = 4
    """Layers of the target."""
    hidden: int = 96
    """Its hidden size; a multiple of `heads`."""
    heads: int = 4
    steps: int = 400
    """Optimizer steps of its training."""
    batch: int = 8
    """Windows a step."""
    prompt: int = 48
    """Bytes of source that a prompt shows."""
    response: int = 144
    """Bytes that the target answers with."""
    temperature: float = 0.3
    """Of its answers: greedy ones of so small a model go round in circles, which even a bigram can follow."""
    samples: int = 512
    """Prompts that it answers."""
    source: int = 400_000
    """Bytes of the standard library that it learns from."""


SMALLEST = Sizes(layers=2, hidden=32, heads=2, steps=20, batch=4, prompt=16, response=32, samples=32, source=100_000)
"""For tests: seconds, and nothing learnt to speak of."""
