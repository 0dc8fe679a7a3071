"""`rehearse --compute torch`: a topology on one device, with the training's own workers, as threads of one process."""

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch

from dflash_run.crew import Crew, ThreadCrew, Worker
from dflash_run.model.losses import chunk_rows
from dflash_run.partitions.floor import Floor
from dflash_run.partitions.kernels import Product, product_of_head, products_of_drafter, products_of_target
from dflash_run.partitions.memory import pin, shares
from dflash_run.partitions.multiprocessors import Split, split
from dflash_run.profiling.grid import grid, middle
from dflash_run.training.orders import TrainingOrders
from dflash_run.training.preparation import Preparation, prepare_training
from dflash_run.training.train import Work, orders_for
from dflash_run.transport.slots import SlotTable
from dflash_sim.settings import THREADS
from policies.faults import Fault, PipelineError
from policies.loading import from_mapping, resolved
from policies.pipeline import Pipeline

_SWITCH_S: Final = 0.0005
"""How long a thread that launches may keep others waiting that have something to hear, order or launch.

Python's own 5 ms at each turn of a message, between launcher and workers, are a time that no process would lose.
"""
_HEAD_SIZES: Final = 200
"""Numbers of rows that the head's products are launched for."""


@dataclass(frozen=True)
class Stage:
    """A device that is split, and the work of its threads: what `Troupe` takes, or `hire` for one run."""

    split: Split
    work: Work

    @property
    def place(self) -> str:
        """Where its workers are, as a profile says it."""
        return f"{THREADS}, {self.split}"

    @property
    def uneven(self) -> bool:
        """Whether workers of a role are unlike: groups always are.

        Of the same size they differ by up to 0.7 % (five of 8 multiprocessors of an H200), by which some lanes fill.
        """
        return bool(self.split.multiprocessors)

    def hire(self, orders: Mapping[Worker, TrainingOrders]) -> Crew:
        """Threads for one run."""
        return ThreadCrew({each: partial(self.work[each[0]], orders=orders[each]) for each in orders})


def prepare_rehearsal(pipeline: Pipeline, *, gpus: int) -> Preparation:
    """As `prepare_training`, with all workers on one device. Raises PipelineError with all that is wrong."""
    faults = []
    if pipeline.training.sync != "none":
        rule = "must be none with --compute torch: NCCL takes one drafter a GPU"
        faults.append(Fault("training.sync", pipeline.training.sync, rule, "add training.sync=none, or train"))
    if pipeline.topology.target_gpus > 1:
        rule = "must be 1 with --compute torch, which has one device"
        faults.append(Fault("topology.target_gpus", pipeline.topology.target_gpus, rule))
    try:
        prepared = prepare_training(on_one_device(pipeline, gpus), gpus=gpus)
    except PipelineError as error:
        raise PipelineError([*faults, *error.faults]) from None
    if faults:
        raise PipelineError(faults)
    return prepared


def on_one_device(pipeline: Pipeline, gpus: int) -> Pipeline:
    """The pipeline with every worker on the first GPU, or on the CPU where there is none, and without checkpoints."""
    mapping = resolved(pipeline)
    device = "cuda:0" if gpus else "cpu"
    mapping["topology"]["devices"] = {"targets": device, "drafters": device}
    mapping["memory"]["staging"] = "device" if gpus else "host"
    mapping["training"] |= {"save_every": 0, "tracker": "none"}
    return from_mapping(mapping)


def set_stage(prepared: Preparation, sizes: Sequence[int] | None = None, between: int = 0) -> Stage:
    """Split the device, and compile and launch what its threads need.

    `sizes`: multiprocessors of each worker, targets first. `between`: so many numbers of rows over the range of this
    plan's are launched for, too, where workers are kept for other plans.
    """
    workers: list[Worker] = [("target", number) for number in range(len(prepared.placement.targets))]
    workers += [("drafter", number) for number in range(len(prepared.placement.drafters))]
    if sizes is not None and len(sizes) != len(workers):
        rule = f"must be {len(workers)} numbers, one for each worker"
        raise PipelineError([Fault("--multiprocessors", ",".join(map(str, sizes)), rule)])
    pipeline, device = prepared.pipeline, torch.device(prepared.placement.drafters[0])
    if sizes is not None and device.type != "cuda":
        rule = "goes with a GPU to split: here is none, and workers are threads of the processor"
        raise PipelineError([Fault("--multiprocessors", ",".join(map(str, sizes)), rule, "leave it out")])
    found = split(device, len(workers), sizes)
    sys.setswitchinterval(_SWITCH_S)
    floor = Floor(found, workers, _memory_ahead(prepared, device))
    with tempfile.TemporaryDirectory(prefix="dflash-compile-") as folder:
        orders = orders_for(prepared, Path(folder), SlotTable())
        floor.compile(orders["drafter", 0], _unlike(prepared))
    if device.type == "cuda":
        floor.launch(("drafter", 0), _products(prepared), _rows(prepared, between))
        head = product_of_head(prepared.shape, getattr(torch, pipeline.training.dtype))
        floor.launch(("drafter", 0), [head], _rows_of_head(prepared))
    return Stage(found, floor.work())


def _memory_ahead(prepared: Preparation, device: torch.device) -> dict[str, int]:
    if device.type != "cuda":
        return {}
    count = {"target": len(prepared.placement.targets), "drafter": len(prepared.placement.drafters)}
    pin(sum(count.values()))
    return shares(prepared.footprints, count, torch.cuda.mem_get_info(device)[0])


def _products(prepared: Preparation) -> set[Product]:
    pipeline = prepared.pipeline
    target = products_of_target(pipeline.model, prepared.shape.taps[-1] + 1)
    return target | products_of_drafter(prepared.shape, getattr(torch, pipeline.training.dtype))


def _rows(prepared: Preparation, between: int) -> list[int]:
    slots = prepared.leg.slots
    more = np.linspace(slots.min(), slots.max(), between).astype(np.int64)
    found: list[int] = np.union1d(slots, more).tolist()
    return found


def _rows_of_head(prepared: Preparation) -> list[int]:
    """Spread over what a chunk can be left with."""
    samples, training = int(prepared.leg.samples.max()), prepared.pipeline.training
    slots = samples * training.anchors * (prepared.shape.block_size - 1)
    most = min(chunk_rows(prepared.shape.vocab_size), slots)
    found: list[int] = np.unique(np.linspace(1, most, _HEAD_SIZES).astype(np.int64)).tolist()
    return found


def _unlike(prepared: Preparation) -> Iterator[tuple[int, ...]]:
    """Samples of a typical batch, and one of them alone, which is compiled for separately.

    Also where this plan has no batch of one: workers that are kept are given other plans later.
    """
    batch = prepared.ids[middle(grid(prepared.leg)).batch]
    samples: tuple[int, ...] = tuple(prepared.plan.samples_of(batch).tolist())
    yield samples
    if len(samples) > 1:
        yield samples[:1]
