"""The work: the section `data`."""

import math
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Tag, model_validator

from policies.sections.fields import (
    Number,
    PathText,
    Positive,
    PositiveNumber,
    Refused,
    Section,
    allowed,
    increasing,
    listed,
    many,
    one_of,
    real,
    whole,
)

MAX_BATCHES: Final = 10**9
_LENGTHS: Final = "a list of integers >= 1, a path, or {lognormal: {mean, sigma, min, max}, count}"


def _total(value: object) -> int:
    """A whole total, in either notation: 11.06e9 is one."""
    number = value if type(value) is int else real(0)(value)
    if number != int(number):
        raise Refused()
    return whole(0)(int(number))


def _batches_kind(value: object) -> str:
    return "<list>" if isinstance(value, list | tuple) else "<number>"


def _lengths_kind(value: object) -> str:
    if isinstance(value, str):
        return "<path>"
    return "<drawn>" if isinstance(value, dict | DrawnLengths) else "<list>"


Factor = Annotated[float, allowed("a number from 0 to 1e6", real(0, 1e6))]


class ListedBatch(Section):
    """One batch of a batch list."""

    tokens: Positive | None = None
    """Tokens, which are its slots too; None: `data.batch_tokens`."""
    length: Positive | None = None
    """Length in tokens by which it is put into a bucket; None: its tokens."""
    seconds: Factor = 1.0
    """Factor on the drafter's time for it."""
    target_seconds: Factor = 1.0
    """Factor on the target's time for it."""
    samples: Positive = 1
    """Samples in it, for counting."""


class Lognormal(Section):
    """Lengths in tokens drawn from a lognormal, rounded and clipped into [min, max]."""

    mean: PositiveNumber
    """Mean of the distribution before clipping, in tokens."""
    sigma: Number
    """Standard deviation of the length's logarithm."""
    min: Positive
    """Shortest length."""
    max: Positive
    """Longest length."""


class DrawnLengths(Section):
    """So many lengths, drawn with the file's seed."""

    lognormal: Lognormal
    """Their distribution."""
    count: Annotated[int, allowed(f"an integer from 0 to {MAX_BATCHES}", whole(0, MAX_BATCHES))]
    """How many samples."""


class BatchSize(Section):
    """How samples are put together; exactly one of the two."""

    samples: Positive | None = None
    """Samples in a batch."""
    max_tokens: Positive | None = None
    """Most padded slots of a batch: samples × longest length."""


Batches = Annotated[
    Annotated[
        int,
        allowed(f"an integer from 0 to {MAX_BATCHES}, or a list of batches", whole(0, MAX_BATCHES)),
        Tag("<number>"),
    ]
    | Annotated[tuple[ListedBatch, ...], many("a list of batches"), Tag("<list>")],
    Discriminator(_batches_kind),
]
Lengths = Annotated[
    Annotated[tuple[int, ...], allowed(_LENGTHS, listed(whole(1))), Tag("<list>")]
    | Annotated[PathText, Tag("<path>")]
    | Annotated[DrawnLengths, Tag("<drawn>")],
    Discriminator(_lengths_kind),
]
Total = Annotated[int, allowed("a whole number of tokens >= 0, e.g. 11.06e9", _total)]
Edges = Annotated[
    tuple[int, ...], allowed("a strictly increasing list of integers >= 1", increasing(1, empty=True))
]
Order = Annotated[Literal["shuffled", "interleaved", "given"], one_of("shuffled", "interleaved", "given")]
Format = Annotated[
    Literal["conversations", "text", "tokens", "dataset"],
    one_of("conversations", "text", "tokens", "dataset"),
]


class Data(Section):
    """What is trained on: one of `batches`, `tokens`, `lengths` for a prediction, `path` for training."""

    batches: Batches | None = None
    """So many equal batches, or a list of batches."""
    batch_tokens: Positive = 1
    """Tokens of each equal batch, and of a listed batch that gives none."""
    tokens: Total | None = None
    """As many equal batches as this total of tokens needs."""
    lengths: Lengths | None = None
    """Lengths of the samples in tokens: a list, the path of a file of them, or a distribution."""
    batch: BatchSize = BatchSize(samples=1)
    """How samples are put into batches (`lengths` and `path`)."""
    buckets: Edges = ()
    """Upper edges of the length buckets in tokens, inclusive; longer samples go to one overflow bucket."""
    order: Order = "given"
    """Order of the batches; left out: shuffled for lengths and path, given for batches and tokens."""
    epochs: Positive = 1
    """Passes over the data."""
    path: PathText | None = None
    """Training: the file (JSONL, parquet) or dataset folder to train on."""
    format: Format | None = None
    """Training: conversations (`messages`), text, tokens (`input_ids`, `loss_mask`) or dataset (a folder);
    None: detected."""
    max_length: Annotated[int, allowed("an integer >= 2", whole(2))] = 3072
    """Training: tokens at which a sample is cut."""
    held_out: Annotated[float, allowed("a number >= 0 and < 1", real(0, math.nextafter(1, 0)))] = 0.0
    """Training: share of the samples kept for evaluation."""
    cache: PathText | None = None
    """Training: folder of the tokenised cache; None: beside the data."""

    @model_validator(mode="before")
    @classmethod
    def _default_order(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "order" in given:
            return given
        as_batches = given.get("batches") is not None or given.get("tokens") is not None
        as_samples = given.get("lengths") is not None or (given.get("path") is not None and not as_batches)
        return {**given, "order": "shuffled" if as_samples else "given"}
