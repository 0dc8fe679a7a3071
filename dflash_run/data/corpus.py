"""The corpus: all samples of a training as tokens, prepared once and mapped by every worker."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dflash_run.data.cache import VERSION, CacheBroken, Cached, Report, open_cache, write_cache
from dflash_run.data.faults import BadLines, BadSample, TemplateRefusal, refused
from dflash_run.data.reading import content_hash, kind_of, read_records
from dflash_run.data.samples import Tokenise, Tokens, padded
from dflash_run.data.templates import template_fault
from dflash_run.data.tokenizer import Tokenizer, load_tokenizer
from policies.faults import ABSENT, Fault, PipelineError
from policies.sections.data import Data
from policies.sections.training import Model

I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]
Progress = Callable[[int], None]
"""Told now and then how many samples have been tokenised."""

SPLIT: Final = int.from_bytes(b"split")
"""The stream of the file's seed that chooses what is held out."""
_EVERY: Final = 1000


@dataclass(frozen=True)
class Padded:
    """B samples side by side, zeros and no loss to the right of each."""

    input_ids: I64
    """int64[B, S], S the longest of them."""
    loss_mask: Flags
    """bool[B, S]."""
    lengths: I64
    """int64[B], tokens."""


class Corpus:
    """M tokenised samples, memory-mapped and read-only."""

    def __init__(self, folder: Path, cached: Cached) -> None:
        self.folder = folder
        self.report: Report = cached.report
        self.content_hash: str = cached.content_hash
        """SHA-256 of all tokens and masks, hex: two corpora are the same if and only if these are."""
        self.lengths: I64 = np.diff(cached.offsets)
        """int64[M], tokens, each at least 2."""
        self.largest_id = cached.largest_id
        self._cached = cached

    @classmethod
    def open(cls, folder: str | Path) -> "Corpus":
        """The corpus that `prepare_corpus` left in `folder`, for worker processes. Raises CacheBroken."""
        return cls(Path(folder), open_cache(Path(folder)))

    @property
    def count(self) -> int:
        """Number of samples, M."""
        return len(self.lengths)

    def input_ids(self, sample: int) -> NDArray[np.int32]:
        """A view of one sample's tokens, int32[lengths[sample]]."""
        return self._cached.tokens[self._place(sample)]

    def loss_mask(self, sample: int) -> Flags:
        """A view of one sample's loss mask, bool[lengths[sample]]."""
        return self._cached.loss_mask[self._place(sample)].view(np.bool_)

    def pad(self, ids: Sequence[int] | I64) -> Padded:
        """The samples `ids` side by side."""
        lengths = self.lengths[np.asarray(ids, np.int64)]
        width = int(lengths.max(initial=0))
        tokens = padded([self.input_ids(int(each)) for each in ids], width, np.int64)
        mask = padded([self.loss_mask(int(each)) for each in ids], width, np.bool_)
        return Padded(tokens, mask, lengths)

    def split(self, share: float, seed: int) -> tuple[I64, I64]:
        """Ids for training and held-out ids, each rising, together all of them; the same for the same arguments.

        With a `share` above 0 at least one is held out, and of two samples or more at least one is left.
        """
        wanted = round(share * self.count)
        if share > 0:
            wanted = min(max(wanted, 1), max(self.count - 1, 1))
        stream = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(SPLIT,)))
        order = stream.permutation(self.count).astype(np.int64)
        return np.sort(order[wanted:]), np.sort(order[:wanted])

    def _place(self, sample: int) -> slice:
        if not 0 <= sample < self.count:
            raise IndexError(f"sample {sample} of {self.count}")
        return slice(int(self._cached.offsets[sample]), int(self._cached.offsets[sample + 1]))


def prepare_corpus(
    data: Data | None,
    model: Model,
    *,
    vocab_size: int | None = None,
    tokenizer: Tokenizer | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """The corpus of `data.path`: from its cache where that is complete, else tokenised now.

    `vocab_size`: rows of the target's embedding, which every id must be one of. `tokenizer`: one that is already
    loaded; else the model section's, where the data need one. Raises PipelineError for whatever cannot be used:
    each bad sample with its line, nothing is left out in silence.
    """
    if data is None or data.path is None:
        raise refused("data.path", ABSENT, "must be given: the file to train on", "e.g. `data: {path: data.jsonl}`")
    path = Path(data.path)
    kind = kind_of(path, data.format)
    if kind != "tokens" and tokenizer is None:
        tokenizer = load_tokenizer(model)
    needed = tokenizer if kind != "tokens" else None
    tokenise = Tokenise(kind, needed, vocab_size)
    identity = needed.identity if needed is not None else ""

    def broken() -> Fault | None:
        return template_fault(needed, model) if needed is not None and kind == "conversations" else None

    name = _named(VERSION, content_hash(path), kind, identity, data.max_length)
    parent = Path(data.cache) if data.cache is not None else path.with_name(f"{path.name}.dflash-cache")
    cached = _cached(parent / name, _tokenised(path, tokenise, broken, progress), data.max_length)
    if vocab_size is not None and cached.largest_id >= vocab_size:
        rule = f"must hold token ids of the target's vocabulary: 0 to {vocab_size - 1}"
        raise refused("data.path", cached.largest_id, rule, "take the target's own tokenizer")
    if cached.report.kept == 0:
        if (fault := broken()) is not None:
            raise PipelineError([fault])
        rule = f"none of its {cached.report.read} samples has two supervised tokens in a row"
        if cached.report.truncated:
            rule += f" ({cached.report.truncated} were cut at data.max_length: {data.max_length})"
        raise refused("data.path", str(path), rule, "raise data.max_length, or correct loss_mask or the roles")
    return Corpus(parent / name, cached)


def _named(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _cached(folder: Path, samples: Iterator[Tokens], max_length: int) -> Cached:
    try:
        return open_cache(folder, verify=True)
    except CacheBroken:
        pass  # not there, cut off or damaged: made anew
    try:
        write_cache(folder, samples, max_length)
        return open_cache(folder)
    except (OSError, CacheBroken) as error:
        reason = getattr(error, "strerror", None) or str(error)
        rule = f"must be a folder that can be written ({reason})"
        raise refused("data.cache", str(folder.parent), rule, "set data.cache to one with room") from None


def _tokenised(
    path: Path, tokenise: Tokenise, broken: Callable[[], Fault | None], progress: Progress | None
) -> Iterator[Tokens]:
    """The tokens of all samples; raises PipelineError at the end if any was bad.

    `broken`: what is wrong with the chat template, asked if it refuses the first conversation. If it is the template's
    fault no other can be judged, and that is told at once.
    """
    bad, asked = BadLines(), False
    for number, record in enumerate(read_records(path), start=1):
        try:
            if isinstance(record.value, BadSample):
                raise record.value
            tokens = tokenise(record.value)
            asked = True
            if bad.count == 0:
                yield tokens
        except BadSample as fault:
            if isinstance(fault, TemplateRefusal) and not asked:
                asked = True
                if (cause := broken()) is not None:
                    raise PipelineError([*bad.faults, cause]) from None
            bad.add(record.place, fault)
        if progress is not None and number % _EVERY == 0:
            progress(number)
    bad.raise_any()
