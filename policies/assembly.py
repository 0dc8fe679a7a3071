"""From a checked pipeline and its batch plan to the dispatcher that every driver uses."""

import importlib
from collections.abc import Iterable, Sequence

from policies.builtin import BUILTIN
from policies.dispatcher import Dispatcher
from policies.faults import Fault, PipelineError
from policies.pipeline import Pipeline, capacity_fault
from policies.policy import Policy, Shape

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
    except Exception as error:  # the user's own module may fail in any way
        rule = f"must be importable and take no arguments: {type(error).__name__}: {error}"
        raise PipelineError([Fault("dispatch.policy", name, rule, _remedy(module))]) from error
    missing = [method for method in _METHODS if not callable(getattr(policy, method, None))]
    if missing:
        rule = f"must have the methods {_listed(_METHODS)}; it lacks {_listed(missing)}"
        raise PipelineError([Fault("dispatch.policy", name, rule)])
    return policy  # type: ignore[no-any-return]


def _remedy(module: str) -> str:
    return f"run from the folder that holds {module.partition('.')[0]}, or set PYTHONPATH"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
