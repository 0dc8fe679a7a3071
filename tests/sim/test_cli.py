"""The command `dflash-sim`, run as a user runs it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
POLICY = '''
from policies.policy import WAIT, LaneSpec, Layout

class ShortestLane:
    def layout(self, shape):
        lanes = (LaneSpec(name=f"lane/{d}", capacity=shape.per_lane(), reader=d) for d in range(shape.consumers))
        return Layout(lanes=tuple(lanes))
    def put(self, producer, batch, view):
        return min(view.consumers, key=lambda lane: len(view.lanes[lane]))
    def take(self, consumer, view):
        return consumer if len(view.lanes[consumer]) else WAIT
    def reach(self, producer, view):
        return tuple(view.consumers)

class Loud(ShortestLane):
    def put(self, producer, batch, view):
        print("hello")
        return super().put(producer, batch, view)

class Raising(ShortestLane):
    def put(self, producer, batch, view):
        return 1 // 0

class Leaving(ShortestLane):
    def take(self, consumer, view):
        raise SystemExit(7)

class NoLayout(ShortestLane):
    def layout(self, shape):
        return None

class NoReach(ShortestLane):
    def reach(self, producer, view):
        return None

class Meddling(ShortestLane):
    def take(self, consumer, view):
        view.lanes[0].clear()

class Stubborn(ShortestLane):
    def take(self, consumer, view):
        return consumer
'''


def dflash_sim(*arguments: str, cwd: Path, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "dflash_sim", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(
        "topology: {targets: 3, drafters: 2}\n"
        "data: {batches: 200, batch_tokens: 1000}\n"
        "timings: {target: {seconds: 1.0, cv: 0.2}, drafter: {seconds: 0.7, cv: 0.1}}\n"
    )
    return file


def test_run_prints_a_table_and_writes_the_summary_into_the_run_folder(small: Path) -> None:
    result = dflash_sim("run", "small.yaml", cwd=small.parent)
    assert result.returncode == 0, result.stderr
    assert "verdict" in result.stdout and "drafter/1" in result.stdout and "shared" in result.stdout
    summary = json.loads((small.parent / "runs" / "small" / "summary.json").read_text())
    assert summary["kind"] == "simulation" and summary["batches"]["trained"] == 200


def test_json_alone_goes_to_stdout(small: Path) -> None:
    result = dflash_sim("run", "small.yaml", "--json", "-o", "here", cwd=small.parent)
    summary = json.loads(result.stdout, parse_constant=lambda name: pytest.fail(f"not JSON: {name}"))
    assert summary == json.loads((small.parent / "here" / "summary.json").read_text())
    assert result.stderr == ""


def test_the_same_file_and_seed_give_the_same_bytes_under_any_hash_seed(small: Path) -> None:
    outputs = {dflash_sim("run", "small.yaml", "--json", cwd=small.parent, hash_seed=seed).stdout for seed in "019"}
    assert len(outputs) == 1
    assert dflash_sim("run", "small.yaml", "--json", "--seed", "1", cwd=small.parent).stdout not in outputs


def test_every_fault_is_one_line_on_stderr_and_nothing_else(small: Path) -> None:
    changes = ("dispatch.depth=0", "queue_capacty=8", "topology.targets=0")
    result = dflash_sim("run", "small.yaml", *(f"--set={change}" for change in changes), cwd=small.parent)
    assert result.returncode == 2 and result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 3 and not any("Traceback" in line for line in lines)
    assert {line.split(":")[0] for line in lines} == {"dispatch.depth", "queue_capacty", "topology.targets"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "missing.yaml"),
        ("run", "."),
        ("run", "small.yaml", "--no-such-option"),
        ("run", "small.yaml", "--replications", "0"),
        ("run", "small.yaml", "--seed", "-1"),
        ("run", "small.yaml", "-o", "small.yaml"),
        ("compare", "small.yaml", "--policy", "shard"),
        ("compare", "small.yaml", "--policy", ","),
        ("run", "small.yaml", "--set", "dispatch.policy=no_such:Thing"),
        ("run", "small.yaml", "--set", "data.lengths=none.txt"),
        ("run", "small.yaml", "--set", "timings={file: none.json}"),
        ("nonsense",),
    ],
)
def test_unusable_input_ends_with_status_2_and_no_traceback(small: Path, arguments: tuple[str, ...]) -> None:
    result = dflash_sim(*arguments, cwd=small.parent)
    assert result.returncode == 2, (result.stdout, result.stderr)
    assert result.stderr.strip() and "Traceback" not in result.stderr


def test_an_incomplete_run_ends_with_status_3_and_says_who_waits_for_what(small: Path) -> None:
    faults = "faults=[{worker: drafter/0, at_batch: 2, kind: hang}, {worker: drafter/1, at_batch: 2, kind: hang}]"
    result = dflash_sim("run", "small.yaml", "--set", faults, cwd=small.parent)
    assert result.returncode == 3
    assert "incomplete: deadlock" in result.stdout and "drafter/0 waits for" in result.stdout


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dflash_sim", *arguments]
    return subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_a_simulation_with_status_130_and_a_summary(small: Path, number: int) -> None:
    process = start("run", "small.yaml", "--json", "--set", "data.batches=2000000", cwd=small.parent)
    time.sleep(6)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors == ""
    summary = json.loads(output)
    assert summary["stop_reason"] == "interrupted" and 0 < summary["batches"]["trained"] < 2_000_000


def test_a_reader_that_has_seen_enough_is_no_error(small: Path) -> None:
    process = start("run", "small.yaml", "--json", cwd=small.parent)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 0


def test_nothing_to_do_is_complete(small: Path) -> None:
    result = dflash_sim("run", "small.yaml", "--set", "data.batches=0", "--json", cwd=small.parent)
    assert result.returncode == 0 and json.loads(result.stdout)["throughput"]["tokens_per_s"] is None


def test_a_stop_that_was_asked_for_is_complete(small: Path) -> None:
    result = dflash_sim("run", "small.yaml", "--set", "stop.max_steps=5", "--json", cwd=small.parent)
    assert result.returncode == 0 and json.loads(result.stdout)["stop_reason"] == "max_steps"


def test_a_user_policy_is_found_in_the_folder_one_stands_in(small: Path) -> None:
    (small.parent / "mine.py").write_text(POLICY)
    result = dflash_sim("run", "small.yaml", "--set", "dispatch.policy=mine:ShortestLane", "--json", cwd=small.parent)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["batches"]["trained"] == 200


def test_a_user_policy_that_breaks_a_rule_is_told_which(small: Path) -> None:
    (small.parent / "mine.py").write_text(POLICY)
    result = dflash_sim("run", "small.yaml", "--set", "dispatch.policy=mine:Stubborn", cwd=small.parent)
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "dispatch.policy: mine:Stubborn.take answered 0 for consumer 0" in result.stderr


@pytest.mark.parametrize("name", ["Raising", "Leaving", "NoLayout", "NoReach", "Meddling"])
def test_a_user_policy_that_fails_is_one_line_and_status_2(small: Path, name: str) -> None:
    (small.parent / "mine.py").write_text(POLICY)
    arguments = ("--set", f"dispatch.policy=mine:{name}", "--set", "training.sync=step")
    result = dflash_sim("run", "small.yaml", *arguments, cwd=small.parent)
    assert result.returncode == 2 and result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"dispatch.policy: mine:{name}: ")


def test_a_module_that_exits_on_import_is_one_line_and_status_2(small: Path) -> None:
    (small.parent / "mine.py").write_text("raise SystemExit(5)")
    result = dflash_sim("run", "small.yaml", "--set", "dispatch.policy=mine:Any", cwd=small.parent)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1


def test_what_a_user_policy_prints_does_not_reach_stdout(small: Path) -> None:
    (small.parent / "mine.py").write_text(POLICY)
    result = dflash_sim("run", "small.yaml", "--set", "dispatch.policy=mine:Loud", "--json", cwd=small.parent)
    assert result.returncode == 0 and json.loads(result.stdout)["batches"]["trained"] == 200


def test_a_folder_that_cannot_be_written_is_told_before_the_run(small: Path) -> None:
    for arguments in (("run", "small.yaml", "-o", "small.yaml"), ("run", "small.yaml", "--perfetto", ".")):
        result = dflash_sim(*arguments, cwd=small.parent)
        assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
        assert result.stderr.startswith(arguments[2])


def test_times_that_would_overflow_are_refused(small: Path) -> None:
    rate = "timings.target.tokens_per_second=1e-99"
    for change in ("timings.drafter.seconds=1e308", "timings.target.cv=1e200", rate):
        result = dflash_sim("run", "small.yaml", "--set", change, cwd=small.parent)
        assert result.returncode == 2 and result.stderr.startswith(change.partition("=")[0])


def test_unknown_policies_to_compare_are_all_told(small: Path) -> None:
    result = dflash_sim("compare", "small.yaml", "--policy", "foo,shared,bar", cwd=small.parent)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 2


def test_compare_says_what_the_best_of_the_compared_would_bring(small: Path) -> None:
    record = str(ROOT / "examples" / "field_record.yaml")
    result = dflash_sim("compare", record, "--policy", "round_robin,shared", cwd=small.parent)
    assert "`shared` would give +11.6%" in " ".join(result.stdout.split())


def test_compare_ranks_the_policies_and_tells_equal_ones(small: Path) -> None:
    result = dflash_sim("compare", "small.yaml", "--policy", "shared,round_robin", "--json", cwd=small.parent)
    comparison = json.loads(result.stdout)
    assert {entry["policy"] for entry in comparison["policies"]} == {"shared", "round_robin"}
    assert comparison["base"] == "shared" and "cannot tell" in comparison["outcome"]


def test_version_names_the_package() -> None:
    result = dflash_sim("--version", cwd=ROOT)
    assert result.returncode == 0 and "dflash-pipeline" in result.stdout


@pytest.mark.parametrize("name", ["field_record", "buckets"])
def test_each_example_trains_all_of_its_batches(name: str, tmp_path: Path) -> None:
    result = dflash_sim("run", str(ROOT / "examples" / f"{name}.yaml"), "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary["batches"]["trained"] == summary["batches"]["planned"]
    if name == "buckets":
        assert summary["mixing"]["mixed_windows"] / summary["mixing"]["windows"] > 0.95


def test_a_trace_replays_without_a_difference_and_opens_in_perfetto(small: Path) -> None:
    result = dflash_sim("run", "small.yaml", "-o", "out", "--trace", "--perfetto", "out/p.json", cwd=small.parent)
    assert result.returncode == 0, result.stderr
    events = json.loads((small.parent / "out" / "p.json").read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"target/0", "target/2", "drafter/1"} <= names
    replayed = dflash_sim("replay", "out", cwd=small.parent)
    assert replayed.returncode == 0 and replayed.stdout.startswith("equal: ")
    assert dflash_sim("replay", "small.yaml", cwd=small.parent).returncode == 2


def test_the_same_file_and_seed_give_the_same_trace(small: Path) -> None:
    traces = set()
    for seed in "07":
        dflash_sim("run", "small.yaml", "-o", f"out{seed}", "--trace", cwd=small.parent, hash_seed=seed)
        traces.add((small.parent / f"out{seed}" / "trace.parquet").read_bytes())
    assert len(traces) == 1


def test_memory_over_a_limit_is_said_with_its_term(small: Path) -> None:
    memory = "memory={hidden_bytes_per_token: 1000, host_limit: 2MB}"
    result = dflash_sim("run", "small.yaml", "--set", memory, "--set", "dispatch.capacity=9", cwd=small.parent)
    assert result.returncode == 0
    assert "over the limit" in result.stdout and "waiting in lanes" in result.stdout
