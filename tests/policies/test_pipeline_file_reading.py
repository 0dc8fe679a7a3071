"""Reading a pipeline file: text, encodings, paths, overrides."""

import json
import time
from pathlib import Path

import pytest
from pipeline_files import EXAMPLE, FULL, only_fault

from policies.faults import PipelineError
from policies.loading import from_mapping, load, loads, resolved


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


def test_null_takes_a_key_out_as_if_the_file_had_left_it_out() -> None:
    text = "dispatch: {depth: 4}\nmodel: {name_or_path: a/b, warm_start: old}\nstop: {at_s: 3}"
    plain = loads("model: {name_or_path: a/b}")
    taken = ["dispatch.depth=null", "model.warm_start=null", "stop.at_s=null", "memory.host_limit=null"]
    assert loads(text, taken) == plain


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
        ("dispatch.dept=null", "dispatch.dept"),
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
