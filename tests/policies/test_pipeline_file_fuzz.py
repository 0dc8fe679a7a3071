"""Whatever is thrown at the loader: a pipeline, or faults of one line each, soon."""

import copy
import json
import time
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pipeline_files import EXAMPLE, FULL

from policies import yamltext
from policies.faults import PipelineError
from policies.loading import from_mapping, load, loads, resolved

WORDS = """
seed topology targets drafters devices feed policy depth dispatch capacity prefetch mix min_buckets
data batches tokens length seconds lengths lognormal mean sigma min max count batch samples
max_tokens buckets order epochs timings target drafter tokens_per_second cv distribution erlang
loader transfer bytes_per_second step file training accumulate sync memory hidden_size taps
host_limit stop at_s faults worker at_batch kind model <list> <number> <drawn>
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


OVERRIDES = st.text(max_size=20) | st.builds("{}.{}={}".format, KEY, KEY, st.text(max_size=8))


@given(st.lists(OVERRIDES, max_size=4))
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
