"""Inputs of a report: what is damaged, cut off, mixed up or empty is named, and the rest is used."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet as pq

from dflash_sim.comparison import predict
from policies.faults import PipelineError
from reports.runs import Run, load_given
from reports.summary import to_json
from reports.writing import write_text
from tests.helpers import pipeline_of
from tests.recording import CASES


def recorded_run(folder: Path, kind: str = "simulation", **sections: Any) -> Path:
    """A run's folder as `dflash-sim run --trace` leaves it; of another kind, the same under that name."""
    sections = {"data": {"batches": 60}, "topology": {"targets": 2, "drafters": 2}} | sections
    _, summary = predict(pipeline_of(**sections), trace_in=folder)
    if kind != "simulation":
        trace = pq.read_table(folder / "trace.parquet")
        (key, header), *_ = trace.schema.metadata.items()
        trace = trace.replace_schema_metadata({key: header.replace(b'"simulation"', f'"{kind}"'.encode())})
        pq.write_table(trace, folder / "trace.parquet")
    write_text(folder / "summary.json", to_json(summary | {"kind": kind}))
    return folder


def only(path: Path) -> Run:
    (run,) = load_given([path]).runs
    return run


def faults_of(*paths: Path) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        load_given(paths)
    lines = [str(fault) for fault in caught.value.faults]
    assert all("\n" not in line for line in lines)
    return lines


def test_a_whole_run_is_read_and_nothing_is_missing(tmp_path: Path) -> None:
    run = only(recorded_run(tmp_path / "whole"))
    assert (run.name, run.missing) == ("whole", [])
    assert run.recorded is not None and run.recorded.complete


@pytest.mark.parametrize("name", ["summary.json", "trace.parquet"])
def test_a_run_may_be_named_by_either_of_its_files(name: str, tmp_path: Path) -> None:
    run = only(recorded_run(tmp_path / "run") / name)
    assert run.name == "run" and run.recorded is not None


def test_a_summary_alone_gives_a_report_that_says_what_it_lacks(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run")
    (folder / "trace.parquet").unlink()
    run = only(folder)
    assert run.recorded is None and "no trace.parquet" in run.missing[0]


def test_a_damaged_trace_leaves_the_summary_and_is_named(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run")
    trace = folder / "trace.parquet"
    trace.write_bytes(trace.read_bytes()[: trace.stat().st_size // 2])
    run = only(folder)
    assert run.recorded is None and run.summary["batches"]["trained"] == 60
    assert "the trace cannot be used" in run.missing[0] and "cannot be read as Parquet" in run.missing[0]


def test_a_trace_of_another_version_leaves_the_summary_and_is_named(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run")
    trace = pq.read_table(folder / "trace.parquet")
    ((key, header),) = trace.schema.metadata.items()
    newer = {key: header.replace(b'"format":1', b'"format":99')}
    pq.write_table(trace.replace_schema_metadata(newer), folder / "trace.parquet")
    run = only(folder)
    assert run.recorded is None and "it has format 99, this version reads 1" in run.missing[0]


def test_a_trace_of_another_run_is_not_drawn_under_this_summary(tmp_path: Path) -> None:
    first, other = recorded_run(tmp_path / "a"), recorded_run(tmp_path / "b", data={"batches": 61})
    shutil.copy(other / "trace.parquet", first / "trace.parquet")
    run = only(first)
    assert run.recorded is None and "61 batches planned, not 60" in run.missing[0]


def test_a_killed_run_is_reported_from_what_it_left(tmp_path: Path) -> None:
    case = CASES["shared, step"]
    lanes = [("shared", 4)]
    writer = case.writer(tmp_path / "killed", lanes)
    writer.observe([(0.0, "target_ready", (0,), []), (1.5, "target_ready", (1,), [])])
    writer.flush()
    run = only(tmp_path / "killed")
    assert run.summary["stop_reason"] == "interrupted" and run.summary["batches"]["trained"] == 0
    assert any("cut off at 1.5 s" in line for line in run.missing)
    assert any("summary.json is missing" in line for line in run.missing)


def test_a_summary_made_again_from_the_trace_has_the_numbers_of_the_first(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run", training={"sync": "step", "accumulate": 2})
    first = only(folder).summary
    (folder / "summary.json").unlink()
    again = only(folder).summary
    for key in ("batches", "tokens", "samples", "throughput", "workers", "lanes", "balance", "mixing", "makespan_s"):
        assert again[key] == first[key], key
    assert again["verdict"]["bottleneck"] == first["verdict"]["bottleneck"]


def test_an_empty_run_is_read_and_has_no_rate(tmp_path: Path) -> None:
    run = only(recorded_run(tmp_path / "empty", data={"batches": []}))
    assert run.summary["batches"]["planned"] == 0 and run.summary["throughput"]["steady_tokens_per_s"] is None


def test_every_unusable_input_is_named_in_one_pass_a_line_each(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    (tmp_path / "text.json").write_text("hello")
    (tmp_path / "nan.json").write_text('{"a": NaN}')
    (tmp_path / "list.json").write_text("[1]")
    names = ("absent", "nothing", "text.json", "nan.json", "list.json")
    lines = faults_of(*(tmp_path / name for name in names))
    assert len(lines) == 5 and all(name in line for name, line in zip(names, lines, strict=True))


def test_an_empty_folder_is_told_to_be_no_run_and_not_to_lack_a_trace(tmp_path: Path) -> None:
    with pytest.raises(PipelineError) as refused:
        load_given([tmp_path])
    [fault] = refused.value.faults
    assert fault.rule == "is no run: it holds neither summary.json nor trace.parquet"


def test_a_summary_of_another_version_names_its_bad_keys(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "trace.parquet").unlink()
    del summary["verdict"]
    summary["workers"][1]["busy_s"] = "long"
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = faults_of(folder)
    assert len(lines) == 2
    assert "verdict" in lines[1] and "missing" in lines[1] and "workers.1.busy_s" in lines[0]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"makespan_s": float("1e300")}, "makespan_s"),
        ({"lanes": [{"name": "x", "capacity": -1, "mean": 0.0, "max": 0}]}, "lanes.0.capacity"),
        ({"batches": "many"}, "batches"),
        ({"eta_ci95": [1.0]}, "eta_ci95"),
    ],
)
def test_values_that_no_figure_can_show_are_refused_by_name(change: dict[str, Any], key: str, tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text()) | change
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "trace.parquet").unlink()
    assert [line for line in faults_of(folder) if f"got '{key}" in line]


def test_a_comparison_with_a_bad_entry_names_the_key(tmp_path: Path) -> None:
    entry = {"policy": "shared", "gain": "much", "gain_ci95": None, "summary": {}}
    document = {"kind": "comparison", "outcome": "x", "base": "shared", "policies": [entry]}
    (tmp_path / "summary.json").write_text(json.dumps(document))
    assert "policies.0.gain" in faults_of(tmp_path)[0]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    recorded_run(tmp_path / "a" / "run")
    recorded_run(tmp_path / "b" / "run")
    assert [run.name for run in load_given([tmp_path / "a/run", tmp_path / "b/run"]).runs] == ["run", "run (2)"]


def test_lines_that_a_kill_cut_off_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run")
    lines = ['{"step": 2, "loss": 3.0}', '{"step": 1, "loss": 4.0, "note": "x"}', '{"step": 3, "lo']
    (folder / "scalars.jsonl").write_text("\n".join(lines))
    sample = {"time_s": 1.0, "device": "cuda:0", "utilization": 0.9, "memory_bytes": 5}
    (folder / "devices.jsonl").write_text(json.dumps(sample))
    run = only(folder)
    assert run.scalars is not None and run.devices is not None
    assert [values.tolist() for values in run.scalars["loss"]] == [[1.0, 2.0], [4.0, 3.0]]
    assert run.devices["utilization/cuda:0"][1].tolist() == [0.9]
    assert run.missing == ["scalars.jsonl: 1 of 3 lines cannot be read and are left out"]
