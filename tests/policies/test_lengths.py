"""Sample lengths: the law they are drawn from, the files they are read from, and how alike neighbours are."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.lengths import (
    BatchPlanError,
    checked_lengths,
    lag1_length_correlation,
    lognormal_lengths,
    read_lengths,
)


def test_the_mean_of_the_law_is_the_mean_before_clipping():
    draws = lognormal_lengths(400_000, mean=2068, sigma=0.6, rng=np.random.default_rng(0))
    assert draws.mean() == pytest.approx(2068, rel=0.005)
    assert np.log(draws).std() == pytest.approx(0.6, rel=0.005)


def test_draws_are_clipped_integers_of_at_least_one():
    rng = np.random.default_rng(0)
    draws = lognormal_lengths(10_000, mean=50, sigma=1.5, shortest=16, longest=90, rng=rng)
    assert draws.dtype == np.int64 and (draws.min(), draws.max()) == (16, 90)
    assert lognormal_lengths(1000, mean=0.01, sigma=1, rng=rng).min() == 1
    assert lognormal_lengths(1000, mean=1e9, sigma=1.5, rng=rng).max() == 2**31 - 1
    assert set(lognormal_lengths(10, mean=7, sigma=0, rng=rng).tolist()) == {7}


@pytest.mark.parametrize(
    ("name", "content"),
    [("l.txt", b"3\n1\n2\n"), ("l", b" 3 1\t2"), ("l.csv", b"3\r\n1\r\n2"), ("l.json", b"[3, 1, 2]")],
)
def test_lengths_are_read_from_text_and_json(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert read_lengths(tmp_path / name).tolist() == [3, 1, 2]


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, ">i4"])
def test_lengths_are_read_from_arrays_of_any_integer_type(tmp_path, dtype):
    np.save(tmp_path / "l.npy", np.array([3, 1, 2], dtype=dtype))
    lengths = read_lengths(str(tmp_path / "l.npy"))
    assert lengths.tolist() == [3, 1, 2] and lengths.dtype == np.int64


def test_an_empty_text_is_no_samples(tmp_path):
    (tmp_path / "l.txt").write_text("\n")
    assert read_lengths(tmp_path / "l.txt").size == 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("l.txt", b"1\n2 x\n", "data.lengths: 'x': line 2 of"),
        ("l.txt", b"1\n2.5\n", "data.lengths: '2.5': line 2 of"),
        ("l.txt", b"1\n0\n", "data.lengths: 0: entry 2 of"),
        ("l.txt", b"9" * 30, "an integer from 1 to 2147483647"),
        ("l.txt", b"9" * 9999, "line 1 of"),
        ("l.txt", b"\xff\xfe\x00", "text of integers"),
        ("l.json", b"[1, 2.0]", "data.lengths: 2.0: entry 2 of"),
        ("l.json", b"[1, true]", "data.lengths: True: entry 2 of"),
        ("l.json", b'{"a": 1}', "a .json list"),
        ("l.json", b"[1, 2", "a .json list"),
        ("l.json", b"[" * 100_000, "a .json list"),
        ("l.npy", b"", "a .npy integer array"),
        ("l.npy", b"1 2 3", "a .npy integer array"),
    ],
)
def test_a_malformed_file_is_refused_in_one_line_that_names_key_value_and_rule(
    tmp_path, name, content, message
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BatchPlanError) as fault:
        read_lengths(tmp_path / name)
    text = str(fault.value)
    assert text.startswith("data.lengths: ") and message in text and "\n" not in text
    assert fault.value.key and fault.value.rule and fault.value.remedy


@pytest.mark.parametrize(
    "array",
    [
        np.ones(2),
        np.ones((2, 2), np.int64),
        np.array([3, 0]),
        np.array([2**63 + 1], np.uint64),
        np.array([None]),
    ],
    ids=repr,
)
def test_an_array_of_anything_but_lengths_is_refused(tmp_path, array):
    np.save(tmp_path / "l.npy", array)
    with pytest.raises(BatchPlanError, match=r"^data\.lengths: "):
        read_lengths(tmp_path / "l.npy")


def test_a_missing_file_is_refused_with_its_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a long path is shortened in the message
    with pytest.raises(BatchPlanError, match=r"none\.txt.*No such file"):
        read_lengths("none.txt")
    with pytest.raises(BatchPlanError, match="readable file"):
        read_lengths(tmp_path)


@pytest.mark.parametrize("bad", [0, -1, 2.0, "4", None, True, 2**31])
def test_a_bad_entry_of_a_list_is_named_by_its_index(bad):
    with pytest.raises(BatchPlanError) as fault:
        checked_lengths([5, bad])
    assert (fault.value.key, fault.value.value) == ("data.lengths.1", bad)


def test_an_error_survives_the_way_between_processes():
    fault = BatchPlanError("data.lengths", "x", "must be a number", "correct it")
    assert (
        str(pickle.loads(pickle.dumps(fault)))
        == str(fault)
        == "data.lengths: 'x': must be a number; correct it"
    )


def test_neighbours_are_alike_when_sorted_and_opposite_when_alternating():
    assert lag1_length_correlation(range(10)) == pytest.approx(1)
    assert lag1_length_correlation([1, 9] * 5) == pytest.approx(-1)
    assert abs(lag1_length_correlation(np.random.default_rng(0).permutation(100_000))) < 0.02


@pytest.mark.parametrize("lengths", [[], [1], [1, 2], [7, 7, 7, 7], [1, 1, 1, 4000]])
def test_the_correlation_is_none_where_it_is_undefined(lengths):
    assert lag1_length_correlation(lengths) is None


@given(st.lists(st.integers(1, 2**31 - 1), max_size=30))
def test_the_correlation_is_always_a_number_json_can_hold(lengths):
    value = lag1_length_correlation(lengths)
    assert value is None or -1 <= value <= 1
    json.dumps(value, allow_nan=False)
