"""Everything that is checked and worked out before a training's workers start, and before any model is loaded."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dflash_run.data.corpus import Corpus, prepare_corpus
from dflash_run.data.planning import TrainingPlan, plan_for_training
from dflash_run.data.tokenizer import load_tokenizer, mask_token
from dflash_run.model.config import target_config
from dflash_run.model.shape import DrafterShape
from dflash_run.training import checkpoint as checkpoints
from dflash_run.training.checkpoint import Checkpoint
from dflash_run.training.devices import Placement, place
from dflash_run.transport.memory import available_bytes
from dflash_run.transport.parcel import HEAD_BYTES, ITEM_BYTES
from policies.assembly import build_dispatcher
from policies.batches import BatchPlan
from policies.faults import ABSENT, Fault, PipelineError
from policies.loading import from_mapping, resolved
from policies.pipeline import Pipeline
from reports.memory import MemoryReport, forecast

_PAGE: Final = 4096


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """What a training goes on from."""

    folder: Path
    checkpoint: Checkpoint


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """A training that can start."""

    pipeline: Pipeline
    """With what the model says filled in: the size of the hidden states, where they wait."""
    corpus: Corpus
    plan: TrainingPlan
    leg: BatchPlan
    """The batches of this run: the plan's, less those that are trained."""
    ids: list[int]
    """The plan's number of each of them."""
    mask_token_id: int
    shape: DrafterShape
    placement: Placement
    slot_bytes: int
    memory: MemoryReport
    """The most that staging can need."""
    resumed: Resumed | None = None


def prepare_training(
    pipeline: Pipeline,
    *,
    gpus: int,
    resume: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Preparation:
    """Check and plan. `gpus`: how many this machine has. Raises PipelineError with all that is wrong."""
    placement, faults = place(pipeline, gpus)
    faults += _missing(pipeline)
    found: dict[str, Any] = {}
    if pipeline.model.name_or_path is not None:
        for step in (_read_target, _read_tokenizer, _read_shape):
            faults += _attempt(step, pipeline, found)
    if pipeline.data is not None and pipeline.data.path is not None and "tokenizer" in found:
        faults += _attempt(_read_corpus, pipeline, found | {"progress": progress}, found)
    if faults:
        raise PipelineError({str(fault): fault for fault in faults}.values())
    pipeline = _completed(pipeline, found["shape"], placement)
    corpus: Corpus = found["corpus"]
    assert pipeline.data is not None, "checked above"
    plan = plan_for_training(pipeline.data, corpus, pipeline.seed)
    resumed = None if resume is None else _resumed(resume, plan, corpus)
    done = resumed.checkpoint.batches() if resumed is not None else set()
    ids = [batch for batch in range(plan.batches.count) if batch not in done]
    leg = plan.batches if resumed is None else plan.batches.select(ids)
    slot_bytes, memory = _sizes(pipeline, plan.batches, leg)
    return Preparation(
        pipeline=pipeline,
        corpus=corpus,
        plan=plan,
        leg=leg,
        ids=ids,
        mask_token_id=found["mask"],
        shape=found["shape"],
        placement=placement,
        slot_bytes=slot_bytes,
        memory=memory,
        resumed=resumed,
    )


def _missing(p: Pipeline) -> Iterator[Fault]:
    if p.model.name_or_path is None:
        remedy = "e.g. `model: {name_or_path: Qwen/Qwen3-8B}`"
        yield Fault("model.name_or_path", ABSENT, "must be given: the target to train for", remedy)
    if p.data is None or p.data.path is None:
        yield Fault("data.path", ABSENT, "must be given: the data to train on", "e.g. `data: {path: data.jsonl}`")
    if p.training.sync == "none" and p.training.save_every:
        rule = "must be 0 under sync: none, whose replicas train apart: there is no one model to keep"
        yield Fault("training.save_every", p.training.save_every, rule, "set training.sync: step or pooled")
    if p.dispatch.placement == "producer":
        rule = "must be taker, or left out, to train: hidden states wait on the target's side"
        yield Fault("dispatch.placement", p.dispatch.placement, rule)


def _attempt(
    step: Callable[[Pipeline, dict[str, Any]], Any], p: Pipeline, given: dict[str, Any], into: Any = None
) -> list[Fault]:
    """Run one reading; its faults join the others."""
    try:
        step(p, given)
    except PipelineError as error:
        return list(error.faults)
    if into is not None:
        into.update({key: value for key, value in given.items() if key != "progress"})
    return []


def _read_target(p: Pipeline, found: dict[str, Any]) -> None:
    found["target"] = target_config(p.model)


def _read_tokenizer(p: Pipeline, found: dict[str, Any]) -> None:
    found["tokenizer"] = load_tokenizer(p.model)
    if "target" in found:
        found["mask"] = mask_token(p.model, found["tokenizer"], found["target"].vocab_size)


def _read_shape(p: Pipeline, found: dict[str, Any]) -> None:
    if "mask" in found:
        found["shape"] = DrafterShape.of(found["target"], p.model, found["mask"])
        if p.model.warm_start is not None:
            from dflash_run.model.exported import read_exported

            read_exported(Path(p.model.warm_start), found["shape"])


def _read_corpus(p: Pipeline, found: dict[str, Any]) -> None:
    vocab = found["target"].vocab_size if "target" in found else None
    found["corpus"] = prepare_corpus(
        p.data, p.model, vocab_size=vocab, tokenizer=found["tokenizer"], progress=found.get("progress")
    )


def _completed(pipeline: Pipeline, shape: DrafterShape, placement: Placement) -> Pipeline:
    """What the model says of the hidden states; a size that the file gives for predictions is replaced."""
    mapping = resolved(pipeline)
    memory = mapping["memory"]
    memory.pop("hidden_bytes_per_token", None)
    memory |= {
        "hidden_size": shape.hidden_size,
        "taps": len(shape.taps),
        "dtype_bytes": ITEM_BYTES[pipeline.model.dtype],
        "keep_last": pipeline.training.loss == "soft",
    }
    if not placement.gpus():
        memory["staging"] = "host"
    elif pipeline.memory.staging == "device":
        mapping["dispatch"]["placement"] = "taker"
    return from_mapping(mapping)


def _resumed(path: Path, plan: TrainingPlan, corpus: Corpus) -> Resumed:
    folder = checkpoints.find(path)
    kept = checkpoints.read(folder)
    for what, ours, theirs, remedy in (
        ("data", corpus.content_hash, kept.corpus_hash, "give the same data, tokenizer and data.max_length"),
        (
            "batch plan",
            plan.batches.content_hash,
            kept.plan_hash,
            "give the same seed, data.batch, buckets, order, held_out and epochs",
        ),
    ):
        if ours != theirs:
            rule = f"must go on with the checkpoint's {what}: batches could else be trained twice, or never"
            raise PipelineError([Fault("--resume", str(folder), rule, remedy)])
    return Resumed(folder=folder, checkpoint=kept)


def _sizes(p: Pipeline, plan: BatchPlan, leg: BatchPlan) -> tuple[int, MemoryReport]:
    """Bytes of a slot, and what staging needs at most; refuses what will not fit."""
    per_token = p.memory.bytes_per_token
    assert per_token is not None, "filled in from the model"
    largest = int((plan.samples * plan.length).max(initial=1)) * per_token
    slot = -(-(HEAD_BYTES + largest) // _PAGE) * _PAGE
    hop = build_dispatcher(p, leg.bucket_names, leg.bucket.tolist()).dispatch
    needed = forecast(
        p.memory,
        targets=p.topology.targets,
        drafters=p.topology.drafters,
        lanes=hop.lanes,
        largest=largest,
        bound=hop.bound,
        prefetch=p.dispatch.prefetch,
        placement=p.dispatch.placement,
    )
    faults = [Fault("memory", ABSENT, f"must hold what is staged: {text}", _LESS) for text in needed["over"]]
    host, here = needed["host_peak_bytes"] or 0, available_bytes()
    if here is not None and host > here:
        rule = f"must leave staging within the {here / 1e9:.1f} GB of free memory: it can need {host / 1e9:.1f} GB"
        faults.append(Fault("dispatch", ABSENT, rule, _LESS))
    if faults:
        raise PipelineError(faults)
    return slot, needed


_LESS: Final = "lower dispatch.depth, or the size of a batch"
