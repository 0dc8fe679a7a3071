"""Everything that is checked and worked out before a training's workers start, and before any model is loaded."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from dflash_run.data.corpus import Corpus, prepare_corpus
from dflash_run.data.planning import TrainingPlan, plan_for_training
from dflash_run.data.reading import kind_of
from dflash_run.data.tokenizer import load_tokenizer, mask_token
from dflash_run.model.checking import check_target
from dflash_run.model.config import target_config
from dflash_run.model.shape import DrafterShape
from dflash_run.training import checkpoint as checkpoints
from dflash_run.training.devices import Placement, place
from dflash_run.training.footprint import Footprint, drafter_footprint, target_footprint
from dflash_run.training.resuming import Resumed, resumed_from
from dflash_run.transport.memory import available_bytes
from dflash_run.transport.parcel import HEAD_BYTES, ITEM_BYTES
from policies.assembly import build_dispatcher, load_policy
from policies.batches import BatchPlan
from policies.faults import ABSENT, Fault, PipelineError
from policies.loading import from_mapping, resolved
from policies.pipeline import Pipeline
from reports.memory import MemoryReport, forecast

_PAGE: Final = 4096
_TRACKERS: Final = {"wandb": ("wandb",), "tensorboard": ("tensorboard", "tensorboardX")}
"""Packages that a tracker needs, one of them."""


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
    footprints: dict[str, Footprint]
    """What a worker of each role will need of its device."""
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
    faults += _missing(pipeline, placement)
    found: dict[str, Any] = {"placement": placement, "progress": progress}
    if resume is not None:
        found["resume"] = resume
    for step, needs in _STEPS:
        if all(name in found for name in needs):
            faults += _attempt(step, pipeline, found)
    if faults:
        raise PipelineError({str(fault): fault for fault in faults}.values())
    return Preparation(
        pipeline=found["pipeline"],
        corpus=found["corpus"],
        plan=found["plan"],
        leg=found["leg"],
        ids=found["ids"],
        mask_token_id=found["mask"],
        shape=found["shape"],
        placement=placement,
        slot_bytes=found["slot_bytes"],
        memory=found["memory"],
        footprints=found["footprints"],
        resumed=found.get("resumed"),
    )


def _missing(p: Pipeline, placement: Placement) -> Iterator[Fault]:
    if p.model.name_or_path is None:
        remedy = "e.g. `model: {name_or_path: Qwen/Qwen3-8B}`"
        yield Fault("model.name_or_path", ABSENT, "must be given: the target to train for", remedy)
    if p.data is None or p.data.path is None:
        yield Fault("data.path", ABSENT, "must be given: the data to train on", "e.g. `data: {path: data.jsonl}`")
    if p.training.sync == "none" and p.training.save_every:
        rule = "must be 0 under sync: none, whose replicas train apart: there is no one model to keep"
        yield Fault("training.save_every", p.training.save_every, rule, "set training.sync: step or pooled")
    needed = _TRACKERS.get(p.training.tracker)
    if needed is not None and not any(map(find_spec, needed)):
        remedy = f"pip install {needed[0]}, or set training.tracker: none"
        yield Fault("training.tracker", p.training.tracker, f"needs the package {needed[0]}", remedy)
    if p.model.attention == "flash_attention_2":
        yield from _flash_faults(p, placement)
    if p.training.evaluate_every and p.data is not None and not p.data.held_out:
        rule = "needs samples that are held out, and data.held_out is 0"
        remedy = "e.g. data.held_out: 0.02, or leave training.evaluate_every out"
        yield Fault("training.evaluate_every", p.training.evaluate_every, rule, remedy)
    if p.topology.target_gpus > 1 and any(not name.startswith("cuda") for names in placement.targets for name in names):
        rule = "must be 1 for targets on the CPU"
        yield Fault("topology.target_gpus", p.topology.target_gpus, rule, "give them GPUs, or leave it out")
    if p.dispatch.placement == "producer":
        rule = "must be taker, or left out, to train: hidden states wait on the target's side"
        yield Fault("dispatch.placement", p.dispatch.placement, rule)


def _flash_faults(p: Pipeline, placement: Placement) -> Iterator[Fault]:
    key, value, remedy = "model.attention", p.model.attention, "set it to sdpa"
    if find_spec("flash_attn") is None:
        yield Fault(key, value, "needs the package flash-attn", "pip install flash-attn, or set it to sdpa")
    if p.model.dtype == "float32":
        yield Fault(key, value, "takes bfloat16 and float16: model.dtype is float32", remedy)
    if any(name == "cpu" for names in placement.targets for name in names):
        yield Fault(key, value, "needs targets on GPUs: one is on the CPU", remedy)


def _attempt(step: "_Step", p: Pipeline, found: dict[str, Any]) -> list[Fault]:
    """Run one step; its faults join the others."""
    try:
        step(p, found)
    except PipelineError as error:
        return list(error.faults)
    return []


def _load_policy(p: Pipeline, found: dict[str, Any]) -> None:
    load_policy(p.dispatch.policy)


def _read_checkpoint(p: Pipeline, found: dict[str, Any]) -> None:
    checkpoints.read(checkpoints.find(found["resume"]))


def _read_target(p: Pipeline, found: dict[str, Any]) -> None:
    if p.model.name_or_path is not None:
        found["target"] = target_config(p.model)


def _read_tokenizer(p: Pipeline, found: dict[str, Any]) -> None:
    there = p.model.tokenizer is not None or "target" in found  # else it would be the target's: its fault is told
    if there and _needs_tokenizer(p):
        found["tokenizer"] = load_tokenizer(p.model)


def _needs_tokenizer(p: Pipeline) -> bool:
    """Tokens that name their mask do without one, and the target's folder need not have one."""
    if p.model.tokenizer is not None or p.model.mask_token_id is None or p.data is None or p.data.path is None:
        return True
    try:
        return kind_of(Path(p.data.path), p.data.format) != "tokens"
    except PipelineError:
        return True  # of what kind they are meant to be nobody knows: all else is told


def _choose_mask(p: Pipeline, found: dict[str, Any]) -> None:
    if "tokenizer" in found or p.model.mask_token_id is not None:
        vocab = found["target"].vocab_size if "target" in found else None
        found["mask"] = mask_token(p.model, found.get("tokenizer"), vocab)


def _read_shape(p: Pipeline, found: dict[str, Any]) -> None:
    shape = DrafterShape.of(found["target"], p.model, found.get("mask", 0))
    if "mask" in found:  # else the rest of it is checked with another
        found["shape"] = shape


def _read_start(p: Pipeline, found: dict[str, Any]) -> None:
    if p.model.warm_start is not None and "resume" not in found:  # else the weights are the checkpoint's
        from dflash_run.model.exported import check_exported, read_shape

        folder = Path(p.model.warm_start)
        if "shape" in found:
            check_exported(folder, found["shape"])
        else:
            read_shape(folder)


def _check_target(p: Pipeline, found: dict[str, Any]) -> None:
    some = "shape" in found and p.training.loss != "soft"
    layers = found["shape"].taps[-1] + 1 if some else None
    told = p.model.attention == "flash_attention_2" and find_spec("flash_attn") is None
    check_target(p.model, layers, attention=not told)


def _read_corpus(p: Pipeline, found: dict[str, Any]) -> None:
    if p.data is None or p.data.path is None:
        return
    tokenizer = found.get("tokenizer")
    if tokenizer is None and kind_of(Path(p.data.path), p.data.format) != "tokens":
        return
    vocab = found["target"].vocab_size if "target" in found else None
    progress = found["progress"]
    found["corpus"] = prepare_corpus(p.data, p.model, vocab_size=vocab, tokenizer=tokenizer, progress=progress)


def _plan(p: Pipeline, found: dict[str, Any]) -> None:
    assert p.data is not None, "there is a corpus"
    plan = plan_for_training(p.data, found["corpus"], p.seed)
    _check_any(p.data.held_out, found["corpus"], plan)
    found |= {"plan": plan, "leg": plan.batches, "ids": list(range(plan.batches.count))}


def _resume(p: Pipeline, found: dict[str, Any]) -> None:
    plan = found["plan"]
    resumed = resumed_from(found["resume"], plan, found["corpus"], found["shape"])
    done = resumed.checkpoint.batches()
    ids = [batch for batch in range(plan.batches.count) if batch not in done]
    found |= {"resumed": resumed, "ids": ids, "leg": plan.batches.select(ids)}


def _size(p: Pipeline, found: dict[str, Any]) -> None:
    if p.dispatch.placement == "producer":
        return  # that is told already, and would change what waits where
    pipeline, plan = _completed(p, found["shape"], found["placement"]), found["plan"].batches
    slot_bytes, memory = _sizes(pipeline, plan, found["leg"])
    footprints = _footprints(pipeline, found, plan, slot_bytes, memory)
    faults = [*_staging_faults(memory), *_device_faults(pipeline, found["placement"], footprints)]
    faults += _cpu_faults(found["placement"], footprints)
    if faults:
        raise PipelineError(faults)
    found |= {"pipeline": pipeline, "slot_bytes": slot_bytes, "memory": memory, "footprints": footprints}


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


def _check_any(share: float, corpus: Corpus, plan: TrainingPlan) -> None:
    if not plan.batches.count:
        rule = f"must leave a sample to train on: all {corpus.count} are held out"
        raise PipelineError([Fault("data.held_out", share, rule, "lower it, or give more data")])


def _sizes(p: Pipeline, plan: BatchPlan, leg: BatchPlan) -> tuple[int, MemoryReport]:
    """Bytes of a slot, and what staging needs at most."""
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
    return slot, needed


def _staging_faults(needed: MemoryReport) -> Iterator[Fault]:
    for text in needed["over"]:
        yield Fault("memory", ABSENT, f"must hold what is staged: {text}", _LESS)
    host, here = needed["host_peak_bytes"] or 0, available_bytes()
    if here is not None and host > here:
        rule = f"must leave staging within the {here / 1e9:.1f} GB of free memory: it can need {host / 1e9:.1f} GB"
        yield Fault("dispatch", ABSENT, rule, _LESS)


def _footprints(
    p: Pipeline, found: dict[str, Any], plan: BatchPlan, slot_bytes: int, memory: MemoryReport
) -> dict[str, Footprint]:
    shape, tied = found["shape"], bool(found["target"].tie_word_embeddings)
    largest = int((plan.samples * plan.length).argmax()) if plan.count else 0
    samples, length = (int(plan.samples[largest]), int(plan.length[largest])) if plan.count else (1, 1)
    per_token = p.memory.bytes_per_token or 1
    at_target = max((peak or 0 for peak in memory["target_peak_bytes"]), default=0)
    slots = 1 if p.memory.staging == "host" else max(1, at_target // max(samples * length * per_token, 1))
    drafter = drafter_footprint(p, shape, slot_bytes=slot_bytes, samples=samples, length=length, tied=tied)
    return {
        "target": target_footprint(p, shape, slot_bytes=slot_bytes, slots=slots, most=samples * length),
        "drafter": drafter,
    }


def _device_faults(p: Pipeline, placement: Placement, footprints: dict[str, Footprint]) -> Iterator[Fault]:
    """What a device cannot hold, as `memory.device_limit` says."""
    limit = p.memory.device_limit
    if limit is None:
        return
    held: Counter[str] = Counter()
    for devices in placement.targets:
        for name in devices:
            held[name] += footprints["target"].total // len(devices)
    for name in placement.drafters:
        held[name] += footprints["drafter"].total
    over = {name: size for name, size in held.items() if name.startswith("cuda") and size > limit}
    if over:
        told = ", ".join(f"{name} needs {size / 1e9:.1f} GB" for name, size in sorted(over.items()))
        rule = f"must hold the workers of each device: {told}"
        remedy = "lower training.pass_slots, data.batch or dispatch.depth, or move a worker"
        yield Fault("memory.device_limit", limit, rule, remedy)


def _cpu_faults(placement: Placement, footprints: dict[str, Footprint]) -> Iterator[Fault]:
    """What this machine cannot hold of the workers that compute on its CPU."""
    targets = sum(names == ("cpu",) for names in placement.targets)
    needed = targets * footprints["target"].total + placement.drafters.count("cpu") * footprints["drafter"].total
    here = available_bytes()
    if here is not None and needed > here:
        rule = f"must fit the {here / 1e9:.1f} GB of free memory: workers on the CPU need {needed / 1e9:.1f} GB"
        remedy = "have fewer of them, or lower training.pass_slots or data.batch"
        yield Fault("topology", ABSENT, rule, remedy)


_LESS: Final = "lower dispatch.depth, or the size of a batch"

_Step = Callable[[Pipeline, dict[str, Any]], None]
_STEPS: Final[tuple[tuple[_Step, tuple[str, ...]], ...]] = (
    (_load_policy, ()),
    (_read_checkpoint, ("resume",)),
    (_read_target, ()),
    (_read_tokenizer, ()),
    (_choose_mask, ()),
    (_read_shape, ("target",)),
    (_read_start, ()),
    (_check_target, ("target",)),
    (_read_corpus, ()),
    (_plan, ("corpus",)),
    (_resume, ("resume", "plan", "shape")),
    (_size, ("plan", "shape")),
)
"""What is read and worked out, in order, and what of the earlier steps each needs: what can be told is told at once."""
