"""From a checked pipeline and its batch plan to the dispatcher that every driver uses."""

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

from policies.builtin import BUILTIN
from policies.dispatcher import Dispatcher
from policies.errors import PolicyError
from policies.faults import Fault, PipelineError
from policies.pipeline import Pipeline, capacity_fault
from policies.policy import LaneSpec, Layout, Policy, Shape, View

_METHODS = ("layout", "put", "take", "reach")


def build_dispatcher(pipeline: Pipeline, bucket_names: Sequence[str], bucket_of: Sequence[int]) -> Dispatcher:
    """A fresh dispatcher for the batches whose buckets `bucket_of` gives, one each, as places in `bucket_names`.

    Raises PipelineError for a policy that cannot be used.
    """
    topology, dispatch, training = pipeline.topology, pipeline.dispatch, pipeline.training
    feed_shape = Shape(producers=1, consumers=topology.targets, depth=pipeline.feed.depth)
    shape = Shape(
        producers=topology.targets,
        consumers=topology.drafters,
        depth=dispatch.depth or 1,
        capacity=dispatch.capacity,
        buckets=tuple(bucket_names),
        mix=dispatch.mix,
        min_buckets=dispatch.min_buckets,
    )
    if dispatch.policy == "bucketed" and dispatch.capacity is not None:
        fault = capacity_fault(dispatch.capacity, len(bucket_names))
        if fault is not None:
            raise PipelineError([fault])
    return Dispatcher(
        feed=load_policy(pipeline.feed.policy),
        feed_shape=feed_shape,
        dispatch=load_policy(dispatch.policy),
        dispatch_shape=shape,
        bucket_of=bucket_of,
        sync=training.sync,
        accumulate=training.accumulate,
        prefetch=dispatch.prefetch,
        max_steps=pipeline.stop.max_steps,
    )


def load_policy(name: str) -> Policy:
    """A built-in policy, or the class that `package.module:Class` names; nothing else is imported."""
    if name in BUILTIN:
        return BUILTIN[name]()
    module, _, attribute = name.partition(":")
    try:
        policy = getattr(importlib.import_module(module), attribute)()
    except (Exception, SystemExit) as error:  # the user's own module may fail in any way
        rule = f"must be importable and take no arguments: {type(error).__name__}: {error}"
        remedy = _remedy(module) if isinstance(error, ModuleNotFoundError) else ""
        raise PipelineError([Fault("dispatch.policy", name, rule, remedy)]) from error
    missing = [method for method in _METHODS if not callable(getattr(policy, method, None))]
    if missing:
        rule = f"must have the methods {_listed(_METHODS)}; it lacks {_listed(missing)}"
        raise PipelineError([Fault("dispatch.policy", name, rule)])
    return GuardedPolicy(policy, name)


class GuardedPolicy:
    """A user's policy whose exceptions and answers of a wrong kind become `PolicyError`s that name the policy."""

    def __init__(self, policy: Any, name: str) -> None:
        self.name = name
        self._policy = policy

    def layout(self, shape: Shape) -> Layout:
        layout = self._call("layout", shape)
        if not isinstance(layout, Layout) or not all(isinstance(lane, LaneSpec) for lane in layout.lanes):
            raise PolicyError(f"{self.name}: layout answered {layout!r}: give a Layout of LaneSpecs")
        return layout

    def put(self, producer: int, batch: int, view: View) -> int:
        lane: int = self._call("put", producer, batch, view)
        return lane

    def take(self, consumer: int, view: View) -> int:
        lane: int = self._call("take", consumer, view)
        return lane

    def reach(self, producer: int, view: View) -> Sequence[int]:
        lanes = self._call("reach", producer, view)
        known = range(len(view.lanes))
        if not isinstance(lanes, Iterable) or not all(type(lane) is int and lane in known for lane in lanes):
            raise PolicyError(f"{self.name}: reach answered {lanes!r}: give numbers of lanes, below {len(known)}")
        return list(lanes)

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self._policy, method)(*arguments)
        except (Exception, SystemExit) as error:
            raise PolicyError(f"{self.name}: {method} raised {type(error).__name__}: {error}") from error


def _remedy(module: str) -> str:
    return f"run from the folder that holds {module.partition('.')[0]}, or set PYTHONPATH"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
