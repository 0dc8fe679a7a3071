"""The pipeline file: what is accepted, what is refused, and how the refusal reads."""

import ast
import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from policies import pipeline, sections, yamltext
from policies.faults import ABSENT, Fault, PipelineError
from policies.loading import from_mapping, load, loads, read_lengths, replaced, resolved
from policies.pipeline import (
    Data,
    Dispatch,
    Pipeline,
    Topology,
    capacity_fault,
    per_worker,
    require_for_simulation,
)

# The example of the contract, as it stands there.
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


# --- defaults and values ---------------------------------------------------------------------------------


def test_the_contracts_example_loads() -> None:
    pipeline = loads(EXAMPLE, for_simulation=True)
    assert (pipeline.topology.targets, pipeline.topology.drafters) == (5, 3)
    assert pipeline.data is not None and pipeline.data.batches == 240
    assert pipeline.timings is not None and pipeline.timings.drafter is not None
    assert pipeline.timings.drafter.seconds == 3.0


def test_everything_has_the_contracts_default() -> None:
    p = loads("{}")
    assert (p.seed, p.topology.targets, p.topology.drafters, p.topology.target_gpus) == (0, 1, 1, 1)
    assert (p.dispatch.policy, p.dispatch.depth, p.dispatch.capacity) == ("shared", 8, None)
    assert (p.dispatch.prefetch, p.dispatch.mix, p.dispatch.min_buckets) == (0, "prefer", 2)
    assert p.dispatch.placement is None
    assert (p.feed.policy, p.feed.depth) == ("shared", 4)
    assert (p.training.sync, p.training.accumulate, p.training.anchors) == ("step", 1, 512)
    assert (p.memory.staging, p.memory.pinned, p.memory.bytes_per_token) == ("host", False, None)
    assert (p.stop.max_steps, p.stop.at_s, p.stop.watchdog_s) == (None, None, 600)
    assert (p.faults, p.data, p.timings, p.name) == ((), None, None, None)
    assert p == Pipeline()


def test_data_have_the_contracts_defaults() -> None:
    data = loads("data: {batches: 3}").data
    assert data is not None
    assert (data.batch_tokens, data.epochs, data.batch.samples, data.batch.max_tokens) == (1, 1, 1, None)


@pytest.mark.parametrize(
    ("data", "order"),
    [
        ({"batches": 3}, "given"),
        ({"batches": [{"tokens": 3}]}, "given"),
        ({"tokens": 100}, "given"),
        ({"lengths": [1, 2]}, "shuffled"),
        ({"path": "x.jsonl"}, "shuffled"),
        ({"lengths": [1, 2], "order": "given"}, "given"),
    ],
)
def test_order_is_given_for_batches_and_shuffled_for_lengths(data: dict[str, Any], order: str) -> None:
    assert from_mapping({"data": data}).data.order == order  # type: ignore[union-attr]


def test_a_capacity_replaces_the_depth() -> None:
    dispatch = loads("dispatch: {capacity: 0}").dispatch
    assert (dispatch.depth, dispatch.capacity) == (None, 0)


def test_every_section_reads_back_what_was_written() -> None:
    p = from_mapping(FULL, for_simulation=True)
    assert p.memory.bytes_per_token == 5120 * 6 * 2
    assert (p.memory.host_limit, p.memory.device_limit) == (60 * 2**30, 96 * 10**9)
    assert p.timings.target.seconds == (1.0, 2.5)  # type: ignore[union-attr]
    assert p.timings.target.distribution.erlang == 4  # type: ignore[union-attr]
    assert p.data.lengths.lognormal.max == 8192  # type: ignore[union-attr]
    assert p.faults[0].worker == "drafter/1"
    assert p.topology.devices.drafters == ("cpu", "cuda")  # type: ignore[union-attr]


def test_a_pipeline_is_frozen_and_hashable() -> None:
    pipeline = from_mapping(FULL)
    assert hash(pipeline) == hash(from_mapping(FULL))
    with pytest.raises(ValidationError):
        pipeline.seed = 3  # type: ignore[misc]


def test_a_pipeline_can_be_built_from_keywords() -> None:
    built = Pipeline(
        topology=Topology(targets=2), dispatch=Dispatch(capacity=3), data=Data(batches=4, lengths=None)
    )
    assert built == loads("topology: {targets: 2}\ndispatch: {capacity: 3}\ndata: {batches: 4}")
    with pytest.raises(ValidationError, match=r"dispatch\.capacity"):
        Pipeline(dispatch=Dispatch(depth=1, capacity=3))


@pytest.mark.parametrize("mapping", [{}, FULL, yaml.safe_load(EXAMPLE)], ids=["empty", "full", "example"])
def test_the_resolved_configuration_loads_to_an_equal_pipeline(mapping: dict[str, Any]) -> None:
    pipeline = from_mapping(mapping)
    config = resolved(pipeline)
    text = json.dumps(config, allow_nan=False)
    assert from_mapping(config) == loads(text) == loads(yaml.safe_dump(config)) == pipeline
    assert resolved(loads(text)) == config


def test_replaced_changes_dotted_keys_and_checks_again() -> None:
    pipeline = replaced(from_mapping(FULL), {"dispatch.depth": 4, "dispatch.policy": "shared"})
    assert (pipeline.dispatch.depth, pipeline.dispatch.capacity) == (4, None)
    with pytest.raises(PipelineError, match=r"topology\.targets"):
        replaced(pipeline, {"topology.targets": 0})


def test_a_number_stands_for_all_workers_of_a_role() -> None:
    assert per_worker(2.0, 3) == (2.0, 2.0, 2.0)
    assert per_worker((1.0, 2.0), 2) == (1.0, 2.0)


def test_every_field_has_a_docstring() -> None:
    modules = sorted(Path(sections.__file__).parent.glob("*.py")) + [Path(pipeline.__file__)]
    classes = [
        node for m in modules for node in ast.parse(m.read_text()).body if isinstance(node, ast.ClassDef)
    ]
    fields = 0
    for body in [node.body for node in classes if ast.unparse(node.bases[0]) == "Section"]:
        for field, following in zip(body, [*body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign):
                fields += 1
                assert isinstance(following, ast.Expr), ast.unparse(field)
    assert fields > 80


# --- the cases ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["0", "-1", "1.5", '"4"', "null", "true"])
def test_a_depth_that_is_no_positive_integer_is_refused(value: str) -> None:
    fault = only_fault(f"dispatch: {{depth: {value}}}")
    assert fault.key == "dispatch.depth" and "an integer >= 1" in fault.rule
    assert f"got {value.replace(chr(34), chr(39))};" in str(fault)


def test_a_misspelt_key_is_refused_with_the_nearest_one_of_the_whole_tree() -> None:
    fault = only_fault("queue_capacty: 8")
    assert fault.key == "queue_capacty" and fault.value == 8 and "dispatch.capacity" in fault.remedy


@pytest.mark.parametrize(
    ("text", "key", "meant"),
    [
        ("dispach: {depth: 4}", "dispach", "dispatch"),
        ("dispatch: {dept: 4}", "dispatch.dept", "dispatch.depth"),
        ("training: {lr: 1}", "training.lr", ""),
        ("timings: {drafter: {second: 4}}", "timings.drafter.second", "timings.drafter.seconds"),
        ("sync: none", "sync", "training.sync"),
        ("faults: [{worker: target/0, at_bach: 1, kind: hang}]", "faults.0.at_bach", "faults.0.at_batch"),
        ("data: {lengths: {lognormal: {mean: 1, sigma: 1, min: 1, maxx: 1}, count: 1}}",
         "data.lengths.lognormal.maxx", "data.lengths.lognormal.max"),
    ],
)  # fmt: skip
def test_a_misspelt_key_gets_a_suggestion_for_its_place(text: str, key: str, meant: str) -> None:
    fault = next(fault for fault in faults_of(text) if fault.key == key)
    assert "not a known key" in fault.rule
    assert (f"did you mean {meant}?" if meant else "known here:") in fault.remedy


def test_a_misspelt_key_does_not_count_as_missing_too() -> None:
    assert only_fault("data: {batchs: 4}").key == "data.batchs"
    assert only_fault("timings: {target: {second: 1}, drafter: {seconds: 1}}").key == "timings.target.second"


def test_a_repeated_key_is_named_with_both_lines() -> None:
    fault = only_fault("seed: 1\ndispatch:\n  depth: 3\n  policy: shared\n  depth: 4\n")
    assert fault.key == "dispatch.depth" and "lines 3 and 5" in fault.rule
    assert "lines 1 and 2" in only_fault('{"seed": 1,\n"seed": 2}').rule


@pytest.mark.parametrize(
    "edges", ["[512, 256]", "[512, 512]", "[-1, 3]", "[0]", "3", "[1.5]", "[true]", "['4']"]
)
def test_buckets_must_be_strictly_increasing_positive_integers(edges: str) -> None:
    fault = only_fault(f"data: {{batches: 1, buckets: {edges}}}")
    assert fault.key.startswith("data.buckets") and "strictly increasing" in fault.rule


@pytest.mark.parametrize("role", ["targets", "drafters"])
@pytest.mark.parametrize("count", ["0", "-3", "2.0", "'1'", "true", "[1]", "1e3"])
def test_a_number_of_workers_must_be_a_positive_integer(role: str, count: str) -> None:
    assert only_fault(f"topology: {{{role}: {count}}}").key == f"topology.{role}"


@pytest.mark.parametrize(("role", "workers"), [("target", 2), ("drafter", 3)])
@pytest.mark.parametrize("rate", ["seconds", "tokens_per_second"])
def test_a_list_of_times_has_one_for_each_worker(role: str, workers: int, rate: str) -> None:
    text = "topology: {{targets: 2, drafters: 3}}\ntimings: {{{}: {{{}: {}}}}}"
    loads(text.format(role, rate, [1] * workers))
    fault = only_fault(text.format(role, rate, [1] * (workers + 1)))
    assert fault.key == f"timings.{role}.{rate}" and f"a list of {workers}" in fault.rule


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "0.001", ".001", "1.0e-3", "+1e-3"])
def test_a_number_in_any_notation_is_a_number(text: str) -> None:
    assert loads(f"training: {{learning_rate: {text}}}").training.learning_rate == 1e-3


# --- scalars -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("none", "none"),
        ("1:30", "1:30"),
        ("012", "012"),
        ("-012", "-012"),
        ("1_000", "1_000"),
        ("0", 0),
        ("-7", -7),
        ("0o17", 15),
        ("0x1F", 31),
        ("1.", 1.0),
        ("1e3", 1000.0),
        (".", "."),
        ("e3", "e3"),
        ("-.inf", float("-inf")),
        ("2020-01-01", "2020-01-01"),
        ("<<", "<<"),
    ],
)
def test_scalars_mean_what_yaml_1_2_says(text: str, value: object) -> None:
    found = yamltext.scalar(text)
    assert found == value and type(found) is type(value)


def test_a_quoted_scalar_is_text() -> None:
    assert yamltext.parse("['1', \"true\", 1, cuda:0]  # YAML", "x").value == ["1", "true", 1, "cuda:0"]


@pytest.mark.parametrize(
    "value", [".nan", ".inf", "-.inf", "1e999", "-1", "'1'", "true", "null", "1:30", "x"]
)
@pytest.mark.parametrize(
    "key",
    [
        "timings.target.seconds",
        "timings.target.tokens_per_second",
        "timings.target.first_seconds",
        "timings.drafter.cv",
        "timings.loader.seconds",
        "timings.transfer.bytes_per_second",
        "timings.step.seconds",
        "training.learning_rate",
        "training.warmup",
        "stop.at_s",
        "stop.watchdog_s",
        "data.tokens",
        "data.held_out",
    ],
)
def test_a_number_must_be_finite_and_in_range(key: str, value: str) -> None:
    found = faults_of(nested(key, yamltext.scalar(value.strip("'")) if "'" not in value else "1"))
    assert key in [fault.key for fault in found]


@pytest.mark.parametrize(
    "key", ["timings.target.tokens_per_second", "training.learning_rate", "stop.watchdog_s"]
)
def test_a_rate_must_not_be_zero(key: str) -> None:
    fault = next(fault for fault in faults_of(nested(key, 0)) if fault.key == key)
    assert "a number > 0" in fault.rule


@pytest.mark.parametrize(
    "key",
    [
        "seed",
        "topology.target_gpus",
        "feed.depth",
        "dispatch.capacity",
        "dispatch.prefetch",
        "dispatch.min_buckets",
        "data.batches",
        "data.batch_tokens",
        "data.epochs",
        "data.batch.samples",
        "data.batch.max_tokens",
        "training.accumulate",
        "training.anchors",
        "memory.hidden_size",
        "stop.max_steps",
        "model.drafter_layers",
    ],
)
@pytest.mark.parametrize("value", [-1, 1.5, 4.0, "4", True, None, {}, 10**30, float("nan")])
def test_an_integer_must_be_one(key: str, value: object) -> None:
    assert key in [fault.key for fault in faults_of(nested(key, value))]


@pytest.mark.parametrize("total", ["11.06e9", "11060000000"])
def test_a_total_of_tokens_may_be_written_as_a_float(total: str) -> None:
    data = loads(f"data: {{tokens: {total}, batch_tokens: 65536}}").data
    assert data is not None and data.tokens == 11_060_000_000 and isinstance(data.tokens, int)


def test_a_total_of_tokens_must_be_whole_and_make_a_sane_number_of_batches() -> None:
    assert only_fault("data: {tokens: 1.5}").key == "data.tokens"
    assert "data.batch_tokens" in only_fault("data: {tokens: 11.06e9}").remedy


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("60GiB", 60 * 2**30),
        ("400MB", 400 * 10**6),
        ("'1.5 GB'", 15 * 10**8),
        ("1kB", 1000),
        ("2 TiB", 2**41),
        ("12B", 12),
        ("1024", 1024),
        ("8e9", 8 * 10**9),
        ("0", 0),
    ],
)
def test_a_size_is_bytes_or_text_with_a_unit(text: str, size: int) -> None:
    assert loads(f"memory: {{host_limit: {text}}}").memory.host_limit == size


@pytest.mark.parametrize(
    "text", ["60", "60 gigs", "GiB", "-1GB", "1.5.2GB", "1e3GB", "60Gib", "", "inf", "9" * 30 + "GB"]
)
def test_a_size_that_cannot_be_read_is_refused(text: str) -> None:
    assert only_fault({"memory": {"host_limit": text}}).key == "memory.host_limit"
    assert only_fault({"memory": {"host_limit": -1}}).key == "memory.host_limit"


@pytest.mark.parametrize("flag", ["yes", "1", "'true'", "null"])
def test_a_flag_is_true_or_false(flag: str) -> None:
    assert "true or false" in only_fault(f"memory: {{pinned: {flag}}}").rule


@pytest.mark.parametrize("section", ["topology", "dispatch", "data", "timings", "memory", "stop", "model"])
@pytest.mark.parametrize("value", [None, 3, "x", [], [1]])
def test_a_section_must_be_a_mapping(section: str, value: object) -> None:
    fault = only_fault({section: value})
    assert fault.key == section and "a mapping of" in fault.rule


# --- words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", ["round_robin", "rotating", "shared", "bucketed", "mypkg.mymod:MyPolicy", "mod:Policy"]
)
def test_a_policy_is_built_in_or_a_dotted_path(policy: str) -> None:
    assert from_mapping({"dispatch": {"policy": policy}}).dispatch.policy == policy


@pytest.mark.parametrize(
    "policy", ["fifo", "a.b.C", "a.b:", ":C", "a..b:C", "a b:C", "a:b:C", "1a:C", 3, None, ["shared"]]
)
def test_any_other_policy_is_refused(policy: object) -> None:
    fault = only_fault({"dispatch": {"policy": policy}})
    assert fault.key == "dispatch.policy" and "round_robin" in fault.rule


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("dispatch.policy", "round_robbin", "round_robin"),
        ("feed.policy", "share", "shared"),
        ("training.sync", "pool", "pooled"),
        ("data.order", "shufled", "shuffled"),
        ("dispatch.mix", "required", "require"),
    ],
)
def test_a_misspelt_word_gets_a_suggestion(key: str, value: str, meant: str) -> None:
    found = faults_of(nested(key, value))
    assert next(fault for fault in found if fault.key == key).remedy == f"did you mean {meant}?"


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("feed.policy", "round_robin"),
        ("dispatch.placement", "anywhere"),
        ("dispatch.mix", "never"),
        ("training.sync", "all"),
        ("training.loss", "kl"),
        ("training.weights", "flat"),
        ("memory.staging", "disk"),
        ("timings.drafter.distribution", "normal"),
        ("name", "../x"),
    ],
)
def test_an_unknown_word_is_refused(key: str, word: str) -> None:
    assert key in [fault.key for fault in faults_of(nested(key, word))]


# --- rules between keys ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("dispatch: {depth: 2, capacity: 3}", "dispatch.capacity"),
        ("dispatch: {policy: bucketed, capacity: 0}", "dispatch.capacity"),
        ("data: {}", "data"),
        ("data: {batches: 1, tokens: 3}", "data"),
        ("data: {batches: 1, lengths: [3]}", "data"),
        ("data: {batches: 4, batch: {samples: 2}}", "data.batch"),
        ("data: {lengths: [1], batch: {samples: 2, max_tokens: 3}}", "data.batch"),
        ("data: {lengths: [1], batch: {}}", "data.batch"),
        ("data: {lengths: [1], batch_tokens: 9}", "data.batch_tokens"),
        ("data: {lengths: {lognormal: {mean: 9, sigma: 1, min: 9, max: 3}, count: 1}}",
         "data.lengths.lognormal.min"),
        ("timings: {target: {}}", "timings.target"),
        ("timings: {target: {seconds: 1, tokens_per_second: 1}}", "timings.target"),
        ("timings: {drafter: {seconds: 1, cv: 0.1, distribution: exponential}}", "timings.drafter.cv"),
        ("timings: {loader: {seconds: 1, cv: 0.1, distribution: {erlang: 2}}}", "timings.loader.cv"),
        ("timings: {transfer: {}}", "timings.transfer"),
        ("timings: {transfer: {seconds: 1, bytes_per_second: 1}}\nmemory: {hidden_bytes_per_token: 1}",
         "timings.transfer"),
        ("timings: {transfer: {bytes_per_second: 1}}", "timings.transfer.bytes_per_second"),
        ("timings: {file: x.json, target: {seconds: 1}}", "timings.target"),
        ("memory: {hidden_size: 3}", "memory"),
        ("memory: {taps: 3}", "memory"),
        ("memory: {hidden_bytes_per_token: 9, hidden_size: 3, taps: 3}", "memory.hidden_bytes_per_token"),
        ("memory: {hidden_bytes_per_token: 9, keep_last: true}", "memory.hidden_bytes_per_token"),
        ("topology: {targets: 2, devices: {targets: [cuda:0]}}", "topology.devices.targets"),
        ("topology: {devices: {drafters: [cuda:0, cpu]}}", "topology.devices.drafters"),
        ("topology: {devices: {targets: [gpu0]}}", "topology.devices.targets.0"),
        ("faults: [{worker: drafter/1, at_batch: 1, kind: crash}]", "faults.0.worker"),
        ("faults: [{worker: loader/0, at_batch: 1, kind: crash}]", "faults.0.worker"),
        ("faults: [{worker: target/00, at_batch: 1, kind: crash}]", "faults.0.worker"),
        ("faults: [{worker: target/0, at_batch: 0, kind: crash}]", "faults.0.at_batch"),
        ("faults: [{worker: target/0, at_batch: 1, kind: explode}]", "faults.0.kind"),
        ("faults: [{worker: target/0, at_batch: 1}]", "faults.0.kind"),
        ("faults: {worker: target/0, at_batch: 1, kind: hang}", "faults"),
        ("model: {taps: []}", "model.taps"),
        ("model: {taps: [3, 1]}", "model.taps.1"),
        ("data: {batches: [{tokens: 0}]}", "data.batches.0.tokens"),
        ("data: {batches: [{seconds: -1}]}", "data.batches.0.seconds"),
        ("data: {batches: [{}, 3]}", "data.batches.1"),
        ("data: {batches: x}", "data.batches"),
        ("data: {lengths: [3, 0]}", "data.lengths.1"),
        ("data: {lengths: 3}", "data.lengths"),
        ("data: {lengths: {count: 3}}", "data.lengths.lognormal"),
    ],
)  # fmt: skip
def test_a_broken_rule_is_one_fault_at_its_key(text: str, key: str) -> None:
    assert only_fault(text).key == key


@pytest.mark.parametrize(
    "text",
    [
        "dispatch: {policy: shared, capacity: 0}",
        "dispatch: {policy: bucketed, capacity: 1}",
        "dispatch: {policy: bucketed}\ndata: {batches: 23}",
        "data: {batches: 0}",
        "data: {batches: []}",
        "data: {lengths: []}",
        "data: {batches: [{tokens: 65536, length: 2048, seconds: 8.0}, {target_seconds: 2, samples: 3}]}",
        "data: {lengths: [100, 100, 100, 4000], batch: {samples: 4}}",
        "data: {path: train.jsonl, lengths: [3], batch: {samples: 2}}",
        "timings: {file: x.json, step: {seconds: 0.1}}",
        "timings: {drafter: {seconds: 0}}",
        "memory: {hidden_bytes_per_token: 51200}\ntimings: {transfer: {bytes_per_second: 55e9}}",
        "stop: {max_steps: 1, at_s: 0}",
    ],
)
def test_what_the_contract_allows_is_accepted(text: str) -> None:
    loads(text)


@pytest.mark.parametrize(
    ("sync", "accumulate", "drafters", "fits"),
    [
        ("none", 1, 3, False),
        ("none", 2, 1, True),
        ("step", 1, 1, False),
        ("step", 1, 2, True),
        ("pooled", 1, 1, False),
        ("pooled", 1, 2, True),
    ],
)
def test_a_step_must_have_room_for_the_buckets_that_it_must_mix(
    sync: str, accumulate: int, drafters: int, fits: bool
) -> None:
    mapping = {
        "topology": {"drafters": drafters},
        "dispatch": {"policy": "bucketed", "mix": "require", "min_buckets": 2},
        "training": {"sync": sync, "accumulate": accumulate},
    }
    if fits:
        from_mapping(mapping)
    else:
        fault = only_fault(mapping)
        assert fault.key == "dispatch.min_buckets" and "training.accumulate" in fault.remedy
    from_mapping(mapping, ["dispatch.mix=prefer"])
    from_mapping(mapping, ["dispatch.policy=shared"])


def test_a_bucketed_capacity_needs_a_slot_for_each_lane_of_the_plan() -> None:
    assert capacity_fault(3, lanes=3) is None
    fault = capacity_fault(2, lanes=3)
    assert fault is not None and fault.key == "dispatch.capacity" and "at least 3" in str(fault)


def test_a_simulation_needs_data_and_timings() -> None:
    keys = [fault.key for fault in require_for_simulation(loads("{}"))]
    assert sorted(keys) == ["data", "timings.drafter", "timings.target"]
    assert [f.key for f in faults_of("seed: 1", for_simulation=True)] == [
        "data",
        "timings.drafter",
        "timings.target",
    ]
    assert (
        only_fault("data: {batches: 1}\ntimings: {target: {seconds: 1}}", for_simulation=True).key
        == "timings.drafter"
    )
    assert only_fault("data: {path: x}\ntimings: {file: x}", for_simulation=True).key == "data"
    assert require_for_simulation(loads(EXAMPLE)) == []
    assert require_for_simulation(loads("data: {batches: 1}\ntimings: {file: x}")) == []


# --- one pass, one line ------------------------------------------------------------------------------------


def test_independent_faults_are_told_in_one_pass_in_the_order_of_the_file() -> None:
    found = faults_of(
        """
training: {accumulate: 0}
topology: {targets: two, drafters: 2}
dispatch: {depth: 2, capacity: 3, polcy: shared}
timings: {drafter: {seconds: [1, 2, 3]}, target: {seconds: 1, cv: -1}}
faults: [{worker: drafter/7, at_batch: 1, kind: hang}, {worker: drafter/0, at_batch: 0, kind: hang}]
seed: 1
stop: {at_s: .nan}
seed: 2
"""
    )
    assert [fault.key for fault in found] == [
        "training.accumulate",
        "topology.targets",
        "dispatch.capacity",
        "dispatch.polcy",
        "timings.drafter.seconds",
        "timings.target.cv",
        "faults.1.at_batch",
        "seed",
        "stop.at_s",
    ]


def test_all_faults_of_a_list_are_told() -> None:
    found = faults_of("faults: [{worker: x, at_batch: 0}, {kind: crash, at_batch: 1}]\nstop: {max_steps: 0}")
    assert [fault.key for fault in found] == [
        "faults.0.worker",
        "faults.0.at_batch",
        "faults.0.kind",
        "faults.1.worker",
        "stop.max_steps",
    ]


def test_a_rule_is_silent_where_a_value_that_it_reads_is_at_fault() -> None:
    text = """
topology: {drafters: x}
timings: {drafter: {seconds: [1, 2]}}
faults: [{worker: drafter/3, at_batch: 1, kind: hang}]
"""
    assert only_fault(text).key == "topology.drafters"


def test_long_values_are_abbreviated_and_control_characters_escaped() -> None:
    for value in (
        "x" * 10_000,
        list(range(10_000)),
        {f"k{i}": i for i in range(999)},
        "a\nb\x1b[31m\u2028",
        -(10**9999),
    ):
        line = str(only_fault({"dispatch": {"depth": value}}))
        assert len(line) < 400 and line.isprintable()
    key = "k\n" * 5_000
    assert len(str(only_fault({key: 1}))) < 500


def test_more_faults_than_one_reads_are_counted() -> None:
    found = faults_of("\n".join(f"k{i}: 1" for i in range(1000)))
    assert len(found) == 51 and str(found[-1]).startswith("and 950 more")


def test_a_fault_without_a_value_says_only_what_is_allowed() -> None:
    assert str(Fault("a.b", ABSENT, "must be given")) == "a.b: must be given"
    assert str(Fault("a.b", None, "must be x", "do y")) == "a.b: got null; must be x; do y"


# --- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"   \n",
        b"# only a comment\n",
        b"null",
        b"- 1\n- 2\n",
        b"just text",
        b"3",
        b"seed: 'unclosed",
        b"dispatch:\n\tdepth: 3\n",
        b"seed: 1\n---\nseed: 2\n",
        b"\xff\xfe\x00s",
        b"seed: \xe9",
        bytes(range(256)),
        "seed: 1".encode("utf-16"),
        b"\x7fELF\x02\x01\x01\x00" + b"\x00" * 50,
        b"seed: \x00",
        b"&a [*a]",
        b"a: *nowhere",
        b"? [a, b]\n: 1",
        b"seed: !!int '3'",
        b'seed: !!python/object/apply:os.system ["true"]',
        b'seed: "\\UFFFFFFFF"',
        b"%YAML 9.9\n---\nseed: 1",
        b"seed: [1, 2",
        b"{" * 5000,
        b"- " * 5000,
        b'{"a":' * 5000,
        b"[" * 200_000,
    ],
    ids=lambda raw: repr(raw[:24]),
)
def test_a_file_that_is_no_pipeline_is_refused_in_one_line(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_bytes(raw)
    with pytest.raises(PipelineError) as caught:
        load(path)
    assert len(caught.value.faults) >= 1
    assert all(len(str(fault).splitlines()) == 1 for fault in caught.value.faults)


@pytest.mark.parametrize("path", ["missing.yaml", ".", "a\0b", "x" * 5000], ids=lambda path: repr(path[:12]))
def test_a_path_that_cannot_be_read_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="must be a readable file"):
        load(tmp_path / path)


def test_aliases_are_read_but_cannot_explode() -> None:
    pipeline = loads("topology: {targets: &n 3, drafters: *n}")
    assert pipeline.topology.drafters == 3
    names = "abcdefghi"
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for above, name in zip(names, names[1:], strict=False):
        bomb += f"{name}: &{name} [{', '.join([f'*{above}'] * 10)}]\n"
    started = time.perf_counter()
    assert "aliases" in only_fault(bomb).rule
    chain = "k0: &k0 [1]\n" + "".join(f"k{i}: &k{i} [*k{i - 1}]\n" for i in range(1, 200))
    assert "nested" in only_fault(chain).rule
    assert time.perf_counter() - started < 2


def test_json_is_accepted_also_with_tabs() -> None:
    text = json.dumps(FULL, indent="\t")
    assert loads(text) == from_mapping(FULL)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(b"\xef\xbb\xbfseed: 3\r\nstop: {}\r\n")
    assert load(path).seed == 3


def test_paths_start_at_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / "lengths.txt").write_text("100 200\n300")
    (folder / "timings.json").write_text("{}")
    text = "data: {lengths: lengths.txt, cache: c}\ntimings: {file: timings.json}\nmodel: {warm_start: /abs}"
    (folder / "p.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    pipeline = load("sub/p.yaml", for_simulation=True)
    assert pipeline.data is not None and pipeline.timings is not None
    assert pipeline.data.lengths == str(folder / "lengths.txt")
    assert pipeline.data.cache == str(folder / "c")
    assert pipeline.timings.file == str(folder / "timings.json")
    assert pipeline.model.warm_start == "/abs"
    assert from_mapping(resolved(pipeline)) == pipeline


def test_a_missing_file_is_told_with_the_other_faults(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("data: {lengths: nope.txt}\ntimings: {file: none.json}\nseed: x")
    with pytest.raises(PipelineError) as caught:
        load(path)
    assert [fault.key for fault in caught.value.faults] == ["data.lengths", "timings.file", "seed"]


@pytest.mark.parametrize("text", ["1 2 3", "[1, 2,\n3]", "1\n2\n3\n", "1,2,3"])
def test_lengths_are_read_from_text_and_json(text: str, tmp_path: Path) -> None:
    (tmp_path / "l").write_text(text)
    assert read_lengths(tmp_path / "l") == (1, 2, 3)


@pytest.mark.parametrize("text", ["1 0", "1 -2", "1 x", "1.5", "²", "9" * 30])
def test_lengths_that_are_no_positive_integers_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "l").write_text(text)
    with pytest.raises(PipelineError, match=r"data\.lengths: .*integer >= 1"):
        read_lengths(tmp_path / "l")


# --- overrides ---------------------------------------------------------------------------------------------


def test_overrides_are_read_as_the_file_is() -> None:
    p = loads(
        EXAMPLE,
        [
            "training.learning_rate=1e-3",
            "training.sync=none",
            "timings.drafter.seconds=[1, 2, 3]",
            "data.batches=[{tokens: 3}, {tokens: 4}]",
            "data.batches.1.tokens=9",
            "dispatch.policy=my.mod:Policy",
            "faults.0.worker=target/0",
            "faults.0.at_batch=3",
            "faults.0.kind=crash",
            "name=a-b",
        ],
    )
    assert (p.training.learning_rate, p.training.sync, p.dispatch.policy) == (1e-3, "none", "my.mod:Policy")
    assert p.data is not None and p.data.batches[1].tokens == 9  # type: ignore[index,union-attr]
    assert p.faults[0].kind == "crash"


def test_an_override_replaces_the_alternatives_of_its_key() -> None:
    text = "dispatch: {depth: 4}\ndata: {lengths: [1]}\ntimings: {target: {tokens_per_second: 3}}"
    p = loads(text, ["dispatch.capacity=2", "data.batches=3", "timings.target.seconds=1"])
    assert (p.dispatch.depth, p.dispatch.capacity) == (None, 2)
    assert p.data is not None and p.data.lengths is None
    assert only_fault("{}", "dispatch.capacity=2", "dispatch.depth=2").key == "dispatch.capacity"


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("dispatch.depth", "--set"),
        ("=3", "--set"),
        ("", "--set"),
        ("dispatch..depth=3", "--set"),
        ("dispatch.depth=[1", "--set"),
        ("dispatch.depth={a: 1, a: 2}", "--set"),
        ("seed.x=3", "--set seed.x"),
        ("faults.3.kind=hang", "--set faults.3"),
        ("dispatch.depth=", "dispatch.depth"),
        ("dispatch.depth=null", "dispatch.depth"),
        ("dispatch.dept=3", "dispatch.dept"),
        ("dispatch.depth=012", "dispatch.depth"),
        ("dispatch.depth=3\nseed: 4", "--set"),
        ("dispatch.depth=\x00", "--set"),
    ],
)
def test_a_malformed_override_is_a_fault_that_names_it(override: str, key: str) -> None:
    fault = only_fault("seed: 1", override)
    assert fault.key == key
    assert key != "--set" or fault.value == override


# --- fuzz --------------------------------------------------------------------------------------------------

WORDS = """
seed topology targets drafters devices feed policy depth dispatch capacity prefetch mix min_buckets data batches
tokens length seconds lengths lognormal mean sigma min max count batch samples max_tokens buckets order epochs
timings target drafter tokens_per_second cv distribution erlang loader transfer bytes_per_second step file
training accumulate sync memory hidden_size taps host_limit stop at_s faults worker at_batch kind model
<list> <number> <drawn>
"""
KEYS = WORDS.split()
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["shared", "bucketed", "require", "exponential", "target/0", "crash", "60GiB", "pooled"]),
    st.integers(0, 9),
)
KEY = st.one_of(st.sampled_from(KEYS), st.text(max_size=8))
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEY, inner, max_size=5)),
    max_leaves=20,
)


def survives(read: Any) -> None:
    """A pipeline, or faults of one line each, soon."""
    started = time.perf_counter()
    try:
        pipeline = read()
    except PipelineError as error:
        assert error.faults
        for fault in error.faults:
            assert len(str(fault).splitlines()) == 1 and str(fault).isprintable() and len(str(fault)) < 1500
    else:
        assert from_mapping(json.loads(json.dumps(resolved(pipeline), allow_nan=False))) == pipeline
    assert time.perf_counter() - started < 5


@given(st.text())
@settings(deadline=None)
def test_any_text_is_read_or_refused(text: str) -> None:
    survives(lambda: loads(text))


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(raw)
    survives(lambda: load(path))


@given(st.text(alphabet="ab:-[]{},*&!|>'\"#%?\t\n 0x1e.~<=@`\\", max_size=60))
@settings(deadline=None, max_examples=300)
def test_text_full_of_yaml_signs_is_read_or_refused(text: str) -> None:
    survives(lambda: loads(text))


@given(st.dictionaries(KEY, TREES, max_size=6))
@settings(deadline=None, max_examples=300)
@example({"data": {"<list>": 3}})
@example({"data": {"batches": {"<list>": 3}}})
@example({"faults": [{}, 3, None]})
@example({"a.b": 1, "0": {}, "": 2})
def test_any_structure_is_read_or_refused(mapping: dict[str, Any]) -> None:
    survives(lambda: from_mapping(mapping))


@given(st.data())
@settings(deadline=None, max_examples=400)
def test_a_valid_file_with_any_value_put_anywhere_is_read_or_refused(data: st.DataObject) -> None:
    mapping = copy.deepcopy(FULL)
    for _ in range(data.draw(st.integers(1, 4))):
        at: Any = mapping
        while True:
            key = data.draw(
                st.sampled_from(sorted(at)) if isinstance(at, dict) else st.integers(0, len(at) - 1)
            )
            if isinstance(at[key], dict | list) and at[key] and data.draw(st.booleans()):
                at = at[key]
            else:
                break
        at[data.draw(KEY) if isinstance(at, dict) and data.draw(st.booleans()) else key] = data.draw(TREES)
    survives(lambda: from_mapping(mapping))


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_a_valid_text_with_pieces_cut_and_put_is_read_or_refused(data: st.DataObject) -> None:
    text = EXAMPLE
    for _ in range(data.draw(st.integers(1, 3))):
        start, end = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
        end = min(end, start + 8)
        text = text[:start] + data.draw(st.text(alphabet=":{}[]-&*!|\n\t 'x1.", max_size=4)) + text[end:]
    survives(lambda: loads(text))


@given(
    st.lists(st.text(max_size=20) | st.builds("{}.{}={}".format, KEY, KEY, st.text(max_size=8)), max_size=4)
)
@settings(deadline=None, max_examples=200)
def test_any_overrides_are_applied_or_refused(overrides: list[str]) -> None:
    survives(lambda: loads(EXAMPLE, overrides))


def test_the_same_fault_reads_the_same_whoever_parses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pure-Python parser, where libyaml is missing, reads the same values."""
    texts = [EXAMPLE, yaml.safe_dump(FULL), "queue_capacty: 8", "seed: 1\nseed: 2"]

    def outcomes() -> list[object]:
        found: list[object] = []
        for text in texts:
            try:
                found.append(loads(text))
            except PipelineError as error:
                found.append(str(error))
        return found

    first = outcomes()
    monkeypatch.setattr(yamltext, "_PARSER", yaml.SafeLoader)
    assert outcomes() == first
