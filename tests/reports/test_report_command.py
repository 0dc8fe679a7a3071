"""The command `dflash-report`, run as a user runs it."""

import csv
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from reports.summary import to_json
from tests.reports.test_runs import recorded_run

ROOT = Path(__file__).parents[2]
PAIR = {"data": {"batches": 60}, "topology": {"targets": 2, "drafters": 2}, "dispatch": {"policy": "round_robin"}}


def dflash_report(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    command = [sys.executable, "-W", "error", "-m", "reports", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=240)


def dflash_sim(*arguments: object, cwd: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dflash_sim", *map(str, arguments)]
    subprocess.run(command, cwd=cwd, env=env, capture_output=True, check=True, timeout=240)


class Links(HTMLParser):
    """What a page refers to, its ids, and the elements that were left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src", "xlink:href", "action") and value:
                self.references.append(value)
            if name == "id" and value:
                self.ids.append(value)
        if tag not in ("meta", "link", "br", "path", "use", "image", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report about one run, with changes simulated."""
    folder = tmp_path_factory.mktemp("made")
    recorded_run(folder / "run", **PAIR | {"topology": {"targets": 3, "drafters": 2}})
    done = dflash_report("run", "-o", "out", "--what-if", "120", "--perfetto", cwd=folder)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.endswith("wrote out/index.html\n")
    return folder / "out"


def test_the_page_is_one_file_that_refers_to_nothing_outside(made: Path) -> None:
    text = (made / "index.html").read_text()
    links = Links(text)
    outside = [each for each in links.references if not each.startswith(("#", "data:"))]
    assert outside and all((made / each).is_file() for each in outside)
    assert not re.findall(r"(?<!xmlns=\")(?<!xmlns:xlink=\")https?://(?!www\.w3\.org)", text)
    assert len(links.ids) == len(set(links.ids)) and not links.open
    assert {each[1:] for each in links.references if each.startswith("#")} <= set(links.ids)


def test_the_first_screen_says_verdict_rate_end_change_and_ledger(made: Path) -> None:
    text = re.sub(r"<[^>]+>", " ", (made / "index.html").read_text())
    for said in ("Verdict", "Throughput, steady", "95 %:", "Time for all data", "What to change", "Nothing was lost"):
        assert said in text
    assert "60 planned = 60 trained + 0 queued + 0 in flight + 0 lost + 0 not yet produced batches" in text
    assert "one target more (4)" in text and "from quick simulations of this run&#x27;s file" in text


def test_figures_and_tables_lie_beside_the_page_as_files(made: Path) -> None:
    figures = {path.name for path in (made / "figures").iterdir()}
    for name in ("workers", "throughput", "eta", "timeline", "lanes", "times", "balance"):
        assert {f"run-{name}.png", f"run-{name}.svg"} <= figures
    summary = json.loads((made.parent / "run" / "summary.json").read_text())
    with (made / "tables" / "run-workers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["worker"] for row in rows] == [worker["name"] for worker in summary["workers"]]
    assert [float(row["busy [s]"]) for row in rows] == [worker["busy_s"] for worker in summary["workers"]]
    assert [int(row["batches"]) for row in rows] == [worker["batches"] for worker in summary["workers"]]
    assert not [path for path in made.rglob("*") if path.name.startswith(".")]


def test_the_trace_is_exported_for_perfetto_when_asked(made: Path) -> None:
    events = json.loads((made / "perfetto" / "run.json").read_text())["traceEvents"]
    assert {"X", "C", "M"} <= {event["ph"] for event in events}
    assert 'href="perfetto/run.json"' in (made / "index.html").read_text()


def test_the_same_runs_give_the_same_page_byte_for_byte(made: Path, tmp_path: Path) -> None:
    pages = []
    for name in ("one", "two"):
        assert dflash_report(made.parent / "run", "-o", name, "--what-if", "0", cwd=tmp_path).returncode == 0
        pages.append({p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("*.*")})
    assert pages[0] == pages[1]


def test_what_comes_from_files_is_escaped_everywhere(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "a<script>alert(1)<script>", **PAIR)
    summary = json.loads((folder / "summary.json").read_text())
    evil = "\"'><script>alert(2)</script><img src=x onerror=alert(3)>"
    summary["verdict"]["text"] = summary["policy"] = summary["lanes"][0]["name"] = evil
    summary["failures"] = [evil]
    summary["versions"] = {evil: evil}
    summary["config"]["name"] = evil
    (folder / "summary.json").write_text(to_json(summary))
    done = dflash_report(folder, folder, "-o", "out", "--what-if", "0", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "out" / "index.html").read_text()
    assert "alert(2)" in text and "<script>alert" not in text and "<img" not in text
    assert dflash_report("diff", folder, folder, "-o", "diff", cwd=tmp_path).returncode == 0
    text = (tmp_path / "diff" / "index.html").read_text()
    assert "<script>alert" not in text and "<img" not in text


def test_a_prediction_and_a_measurement_stand_side_by_side(tmp_path: Path) -> None:
    for name, kind in (("predicted", "simulation"), ("measured", "rehearsal")):
        folder = recorded_run(tmp_path / name, **PAIR)
        if kind == "rehearsal":
            recorded_run(folder, kind, **PAIR)
    done = dflash_report("predicted", "measured", "-o", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "out" / "index.html").read_text()
    assert "Measured against predicted" in text and "no side moved by more than 3%" in text
    with (tmp_path / "out" / "tables" / "prediction.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[1][0] == "rate [tokens/s]" and rows[1][1] == rows[1][2] and float(rows[1][3]) == 0
    assert (tmp_path / "out" / "figures" / "compare-overlay.svg").exists()


def test_a_comparison_and_a_plan_are_reported_from_their_json(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(
        "topology: {targets: 3, drafters: 2}\ndata: {batches: 40}\n"
        "timings: {target: {seconds: 1, cv: 0.2}, drafter: {seconds: 1}}\n"
    )
    dflash_sim("compare", "file.yaml", "--replications", 3, "-o", "compared", cwd=tmp_path)
    candidate = {"topology": {"targets": 3, "drafters": 2}, "dispatch": {"policy": "shared", "depth": 8}}
    candidates = [{**candidate, "throughput": 5.0, "makespan_s": 8.0, "memory": 10**9}]
    (tmp_path / "plan.json").write_text(json.dumps({"best": {}, "candidates": candidates}))
    done = dflash_report("compared", "plan.json", "-o", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "out" / "index.html").read_text()
    assert "Frontier of the plan" in text and "Outcome" in text
    with (tmp_path / "out" / "tables" / "compare-runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 and any(row["paired 95 % from"] for row in rows)


def test_a_diff_names_the_side_that_moved_and_the_settings(tmp_path: Path) -> None:
    recorded_run(tmp_path / "fast", **PAIR)
    recorded_run(tmp_path / "slow", **PAIR, timings={"drafter": {"seconds": 2.4}})
    done = dflash_report("diff", "fast", "slow", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "slow against fast"
    assert lines[1].startswith("drafters: step time 2.4×") and "queue" not in lines[1]
    assert any(re.match(r"timings\.drafter\.seconds +1\.0 +2\.4", line) for line in lines)
    assert "Versions: Every version is the same." in lines
    answer = json.loads(dflash_report("diff", "fast", "slow", "--json", cwd=tmp_path).stdout)
    factors = {(each["side"], each["what"]): each["factor"] for each in answer["moved"]}
    assert factors["drafters", "step time"] == pytest.approx(2.4) and answer["text"] == lines[1]


def test_the_help_of_diff_names_diff(tmp_path: Path) -> None:
    said = dflash_report("diff", "--help", cwd=tmp_path)
    assert said.returncode == 0 and "Usage: dflash-report diff [OPTIONS]" in said.stdout


def test_a_damaged_trace_gives_a_page_that_says_what_is_missing(tmp_path: Path) -> None:
    trace = recorded_run(tmp_path / "run", **PAIR) / "trace.parquet"
    trace.write_bytes(trace.read_bytes()[:-100])
    done = dflash_report("run", "-o", "out", "--what-if", "0", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "run: the trace cannot be used: " in done.stdout
    text = (tmp_path / "out" / "index.html").read_text()
    assert "What is missing in this report" in text and "cannot be read as Parquet" in text
    assert (tmp_path / "out" / "figures" / "run-workers.png").exists()
    assert not (tmp_path / "out" / "figures" / "run-timeline.png").exists()


def test_an_incomplete_run_says_who_waits_for_what(tmp_path: Path) -> None:
    faults = [{"worker": "drafter/0", "at_batch": 3, "kind": "hang"}]
    recorded_run(tmp_path / "hung", **PAIR, faults=faults, training={"sync": "step"})
    assert dflash_report("hung", "-o", "out", "--what-if", "0", cwd=tmp_path).returncode == 0
    text = re.sub(r"<[^>]+>", " ", (tmp_path / "out" / "index.html").read_text())
    assert "The run is incomplete: hung: nothing could happen any more." in text
    assert re.search(r"drafter/0 waits for .*, since t = ", text)


def test_an_empty_run_gives_a_page_without_figures_over_time(tmp_path: Path) -> None:
    recorded_run(tmp_path / "empty", data={"batches": []})
    done = dflash_report("empty", "-o", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no verdict" in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("absent", "-o", "out"), "absent: must be a run's folder or a summary.json"),
        (("file", "-o", "out"), "file: it is not JSON"),
        (("diff", "absent", "absent"), "absent: must be a run's folder"),
        (("diff", "one"), "Missing argument 'B'"),
        (("one", "-o", "file"), "-o: got 'file'; must be a folder that can be written"),
        (("one",), "Missing option '-o'"),
    ],
)
def test_what_cannot_be_used_is_told_in_a_line_with_status_two(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a run")
    done = dflash_report(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert all(said.split(":")[0] in line for line in done.stderr.splitlines()) and said in done.stderr
