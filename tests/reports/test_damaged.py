"""A damaged summary beside a good trace, and parts of a trace that were cut: the rest is reported with the reason."""

import json
from pathlib import Path

import pytest

from policies.faults import PipelineError
from reports.runs import load_given
from tests.recording import CASES
from tests.reports.test_runs import only, recorded_run


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"kind": NaN}', '{"kind": "simulation"}', "\x00\x01"])
@pytest.mark.parametrize("named", ["", "summary.json", "trace.parquet"])
def test_a_damaged_summary_beside_a_good_trace_is_computed_again(text: str, named: str, tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run")
    (folder / "summary.json").write_text(text)
    run = only(folder / named)
    assert run.summary["batches"]["trained"] == 60 and run.recorded is not None
    assert run.missing[0].startswith("summary.json cannot be used (")
    assert run.missing[0].endswith("its figures were computed again from the trace; memory is left out")


def test_a_damaged_summary_beside_a_damaged_trace_is_refused_by_name(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run")
    (folder / "summary.json").write_text("{")
    (folder / "trace.parquet").write_text("no trace")
    with pytest.raises(PipelineError, match="it is not JSON"):
        load_given([folder])


def test_a_value_of_a_bad_type_in_the_summary_is_named_beside_the_trace(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text()) | {"makespan_s": "long"}
    (folder / "summary.json").write_text(json.dumps(summary))
    assert "makespan_s" in only(folder).missing[0]


@pytest.mark.parametrize("bad", [1, 2])
def test_parts_before_a_truncated_one_are_reported_with_the_reason(bad: int, tmp_path: Path) -> None:
    writer = CASES["shared, step"].writer(tmp_path / "killed", [("shared", 4)], rows_per_part=1)
    for number in range(3):
        writer.observe([(float(number), "drafter_ready", (0,), [])])
    parts = sorted((tmp_path / "killed" / "trace.parts").glob("*.parquet"))
    assert len(parts) >= 3
    cut = parts[bad]
    cut.write_bytes(cut.read_bytes()[:-40])
    run = only(tmp_path / "killed")
    assert run.recorded is not None and not run.recorded.complete
    assert any(f"part {cut.name} of the trace" in line and "cannot be read" in line for line in run.missing)


def test_where_the_first_part_is_cut_there_is_nothing_to_report(tmp_path: Path) -> None:
    writer = CASES["shared, step"].writer(tmp_path / "killed", [("shared", 4)], rows_per_part=1)
    writer.observe([(0.0, "drafter_ready", (0,), [])])
    part = sorted((tmp_path / "killed" / "trace.parts").glob("*.parquet"))[0]
    part.write_bytes(part.read_bytes()[:-40])
    with pytest.raises(PipelineError, match="cannot be used"):
        load_given([tmp_path / "killed"])
