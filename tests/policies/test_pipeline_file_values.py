"""The pipeline file's scalars and words: what each field takes and refuses."""

import pytest
from pipeline_files import faults_of, nested, only_fault

from policies import yamltext
from policies.loading import from_mapping, loads


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


@pytest.mark.parametrize("value", [0, 0.001])
def test_a_watchdog_must_leave_workers_the_time_to_speak(value: float) -> None:
    fault = next(fault for fault in faults_of(nested("stop.watchdog_s", value)))
    assert fault.key == "stop.watchdog_s" and "a number >= 0.1" in fault.rule


@pytest.mark.parametrize("key", ["timings.target.tokens_per_second", "training.learning_rate"])
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
        ("name", ".x"),
    ],
)
def test_an_unknown_word_is_refused(key: str, word: str) -> None:
    assert key in [fault.key for fault in faults_of(nested(key, word))]
