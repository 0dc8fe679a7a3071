"""Pipeline files to start from, and ways to look at their faults."""

from typing import Any

import pytest

from policies.faults import Fault, PipelineError
from policies.loading import from_mapping, loads

# The contract's example.
EXAMPLE = """
seed: 0
topology: {targets: 5, drafters: 3}
feed: {policy: shared, depth: 4}
dispatch: {policy: shared, depth: 8}
data:
  batches: 240
  # batch_tokens: 65536
  # tokens: 11.06e9
  epochs: 1
timings:
  target: {seconds: 1.0}
  drafter: {seconds: 3.0}
  # loader: {seconds: 0.01}
training: {accumulate: 1, sync: step}
memory: {}
stop: {}
faults: []
"""

FULL: dict[str, Any] = {
    "name": "everything",
    "seed": 7,
    "topology": {
        "targets": 2,
        "drafters": 2,
        "devices": {"targets": ["cuda:0", "cuda:1"], "drafters": ["cpu", "cuda"]},
        "target_gpus": 1,
    },
    "feed": {"policy": "rotating", "depth": 2},
    "dispatch": {
        "policy": "bucketed",
        "capacity": 12,
        "prefetch": 1,
        "mix": "require",
        "min_buckets": 2,
        "placement": "taker",
    },
    "data": {
        "lengths": {"lognormal": {"mean": 2068, "sigma": 0.6, "min": 16, "max": 8192}, "count": 1000},
        "batch": {"max_tokens": 49152},
        "buckets": [512, 1024, 2048],
        "order": "interleaved",
        "epochs": 2,
    },
    "timings": {
        "target": {"seconds": [1, 2.5], "distribution": {"erlang": 4}, "first_seconds": 60},
        "drafter": {"tokens_per_second": 6750, "cv": 0.1},
        "loader": {"seconds": 0.01, "distribution": "exponential"},
        "transfer": {"bytes_per_second": 55e9},
        "step": {"seconds": 0.2},
    },
    "training": {"accumulate": 1, "sync": "pooled", "anchors": 1024, "learning_rate": 1e-3},
    "memory": {
        "hidden_size": 5120,
        "taps": 5,
        "dtype_bytes": 2,
        "keep_last": True,
        "staging": "device",
        "host_limit": "60GiB",
        "device_limit": "96 GB",
        "drafter_model_bytes": "46GB",
        "pinned": True,
    },
    "stop": {"max_steps": 100, "at_s": 3600, "watchdog_s": 60},
    "faults": [{"worker": "drafter/1", "at_batch": 3, "kind": "hang"}],
    "model": {"name_or_path": "some/model", "block_size": 8, "taps": [1, 9, 17]},
}


def faults_of(text: str | dict[str, Any], *overrides: str, **options: Any) -> list[Fault]:
    with pytest.raises(PipelineError) as caught:
        if isinstance(text, str):
            loads(text, overrides, **options)
        else:
            from_mapping(text, overrides, **options)
    for fault in caught.value.faults:
        assert len(str(fault).splitlines()) == 1 and str(fault).isprintable()
    assert str(caught.value) == "\n".join(map(str, caught.value.faults))
    return caught.value.faults


def only_fault(text: str | dict[str, Any], *overrides: str, **options: Any) -> Fault:
    found = faults_of(text, *overrides, **options)
    assert len(found) == 1, [str(fault) for fault in found]
    return found[0]


def nested(dotted: str, value: object) -> dict[str, Any]:
    """{a: {b: value}} of `a.b`."""
    for part in reversed(dotted.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value
