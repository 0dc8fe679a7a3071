"""The pipeline description: what the file says, frozen and checked. `policies.loading` reads the file."""

import re
from typing import Annotated, Final, Self

from pydantic import ValidationInfo, model_validator

from policies.faults import Fault, PipelineError
from policies.rules import Checking, broken, capacity_fault
from policies.sections.data import BatchSize, Data, DrawnLengths, ListedBatch, Lognormal
from policies.sections.fields import Natural, Refused, Section, allowed, many
from policies.sections.hops import POLICIES, Dispatch, Feed
from policies.sections.limits import Memory, Stop
from policies.sections.timings import Erlang, LoaderTime, RoleTime, StepTime, Timings, TransferTime
from policies.sections.topology import Devices, InjectedFault, Topology
from policies.sections.training import Model, Training

__all__ = [
    "POLICIES",
    "BatchSize",
    "Data",
    "Devices",
    "Dispatch",
    "DrawnLengths",
    "Erlang",
    "Feed",
    "InjectedFault",
    "ListedBatch",
    "LoaderTime",
    "Lognormal",
    "Memory",
    "Model",
    "Pipeline",
    "RoleTime",
    "StepTime",
    "Stop",
    "Timings",
    "Topology",
    "Training",
    "TransferTime",
    "capacity_fault",
    "require_for_simulation",
]


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def _folder_name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Refused()
    return value


Name = Annotated[str, allowed("letters, digits, _, - and ., starting with a letter or digit", _folder_name)]


class Pipeline(Section):
    """A whole pipeline. Attributes carry the names of the file's keys.

    Built from keywords it raises pydantic's ValidationError; `policies.loading` raises PipelineError instead.
    """

    name: Name | None = None
    """Name of the run, and of its folder under `runs/`; None: the file's."""
    seed: Natural = 0
    """Seed of everything random."""
    topology: Topology = Topology()
    """Workers of each role."""
    feed: Feed = Feed()
    """Loader → targets."""
    dispatch: Dispatch = Dispatch()
    """Targets → drafters."""
    data: Data | None = None
    """The work; a simulation or rehearsal needs it."""
    timings: Timings | None = None
    """How long things take; a simulation or rehearsal needs them."""
    training: Training = Training()
    """Optimizer steps and the optimizer."""
    memory: Memory = Memory()
    """Sizes and limits of staging memory."""
    stop: Stop = Stop()
    """When to end before the data do."""
    faults: Annotated[tuple[InjectedFault, ...], many("a list of {worker, at_batch, kind}")] = ()
    """Failures made to happen."""
    model: Model = Model()
    """The target and the drafter, for training."""

    @model_validator(mode="after")
    def _rules(self, info: ValidationInfo) -> Self:
        checking = info.context if isinstance(info.context, Checking) else Checking()
        faults = broken(self, checking)
        if faults:
            raise PipelineError(faults)
        return self


def require_for_simulation(pipeline: Pipeline) -> list[Fault]:
    """What a simulation or rehearsal needs and this pipeline lacks; empty where it is complete."""
    return broken(pipeline, Checking(for_simulation=True))
