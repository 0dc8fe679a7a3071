"""What a training goes on from, and whether it can: the same data and plan, the same drafter, files that are whole."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dflash_run.data.corpus import Corpus
from dflash_run.data.planning import TrainingPlan
from dflash_run.model.config import target_config
from dflash_run.model.shape import DrafterShape
from dflash_run.training import checkpoint as checkpoints
from dflash_run.training.checkpoint import Checkpoint
from policies.faults import ABSENT, Fault, PipelineError, shown
from policies.loading import from_mapping

_PLAN: Final = "give the same seed, data.batch, buckets, order, held_out and epochs"
_KEYS: Final = {
    "layers": "model.drafter_layers",
    "taps": "model.taps",
    "block_size": "model.block_size",
    "mask_token_id": "model.mask_token_id",
}
"""Keys of the file by fields of the shape."""
_TARGETS: Final = (
    "target_layers", "hidden_size", "intermediate_size", "heads", "kv_heads", "head_dim", "vocab_size", "rope_theta"
)  # fmt: skip
"""Fields that are the target's, and that the weights have learnt for."""


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """What a training goes on from."""

    folder: Path
    checkpoint: Checkpoint


def resumed_from(path: Path, plan: TrainingPlan, corpus: Corpus, shape: DrafterShape) -> Resumed:
    """The checkpoint that `path` means. Raises PipelineError with all that speaks against going on from it.

    Its tensors are read once, and not kept.
    """
    folder = checkpoints.find(path)
    kept = checkpoints.read(folder)
    faults = [*_other_batches(folder, kept, plan, corpus)]
    other = [*_other_drafter(kept, shape)]
    faults += other or _damage(folder, shape)
    if faults:
        raise PipelineError(faults)
    return Resumed(folder=folder, checkpoint=kept)


def _other_batches(folder: Path, kept: Checkpoint, plan: TrainingPlan, corpus: Corpus) -> Iterator[Fault]:
    rule = "must go on with the checkpoint's {}: batches could else be trained twice, or never"
    if corpus.content_hash != kept.corpus_hash:
        remedy = "give the same data, tokenizer and data.max_length"
        yield Fault("--resume", str(folder), rule.format("data"), remedy)
    elif plan.batches.content_hash != kept.plan_hash:
        yield Fault("--resume", str(folder), rule.format("batch plan"), _PLAN)
    elif plan.batches.count != kept.planned:
        told = f"must be a whole checkpoint: its `planned` must be the plan's {plan.batches.count} batches"
        yield Fault("--resume", kept.planned, told, "take an earlier one")


def _other_drafter(kept: Checkpoint, shape: DrafterShape) -> Iterator[Fault]:
    """Weights would fit a drafter with other taps, too, and mean nothing there."""
    ours, before = sizes(shape), kept.shape or _sizes_then(kept, shape)
    other = [name for name in ours if name in before and before[name] != ours[name]]
    for name in other:
        if name in _KEYS:
            rule = f"must be the checkpoint's: {shown(before[name])}"
            yield Fault(_KEYS[name], ours[name], rule, "go on with that, or begin anew")
    if target := [name for name in other if name in _TARGETS]:
        old = ", ".join(f"{name} {shown(before[name])}, not {shown(ours[name])}" for name in target)
        remedy = "go on with the checkpoint's target, or begin anew"
        yield Fault("model.name_or_path", ABSENT, f"must be a target as the checkpoint's: {old}", remedy)


def sizes(shape: DrafterShape) -> dict[str, Any]:
    """A shape as JSON gives it back."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(shape).items()}


def _sizes_then(kept: Checkpoint, shape: DrafterShape) -> dict[str, Any]:
    """Of a checkpoint that does not say: what its file gives today. `shape` has the tokenizer's mask."""
    try:
        theirs = from_mapping(kept.config).model
        mask = shape.mask_token_id if theirs.mask_token_id is None else theirs.mask_token_id
        return sizes(DrafterShape.of(target_config(theirs), theirs, mask))
    except PipelineError:  # another version's file, or a target that has moved: the tensors' shapes must do
        return {}


def _damage(folder: Path, shape: DrafterShape) -> list[Fault]:
    from dflash_run.model.tensorfile import check_finite, check_tensors
    from dflash_run.training.replica import kept_tensors

    faults: list[Fault] = []
    for name, expected in kept_tensors(shape).items():
        try:
            check_tensors(folder / name, expected, "--resume")
            check_finite(folder / name, "--resume")
        except PipelineError as error:
            faults += error.faults
    return faults
