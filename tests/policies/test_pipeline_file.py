"""The pipeline file: what it means, what it refuses, and how the refusal reads."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pipeline_files import EXAMPLE, FULL, faults_of, only_fault
from pydantic import ValidationError

from policies import pipeline, sections
from policies.faults import ABSENT, Fault, PipelineError
from policies.loading import from_mapping, loads, replaced, resolved
from policies.pipeline import (
    Data,
    Dispatch,
    Pipeline,
    Topology,
    capacity_fault,
    require_for_simulation,
)


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
        ("topology: {devices: {targets: gpu0}}", "topology.devices.targets"),
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


def test_independent_faults_are_told_in_one_pass_in_the_order_of_the_file() -> None:
    found = faults_of(
        """
training: {accumulate: 0}
topology: {targets: two, drafters: 2}
dispatch: {depth: 2, capacity: 3, polcy: shared}
timings: {drafter: {seconds: [1, 2, 3]}, target: {seconds: 1, cv: -1}}
faults: [{worker: drafter/7, at_batch: 1, kind: hang}, {worker: target/9, at_batch: 1, kind: hang}]
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
        "faults.0.worker",
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
