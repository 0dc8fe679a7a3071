"""What a change would bring: asks the command `dflash-sim` for quick simulations of the run's own file.

The questions run beside the drawing and are given up after a time: a report never waits long for them.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from policies.faults import one_line
from reports.runs import Run
from reports.summaryfile import section
from reports.verdict import Rates, cautious

MOST_BATCHES: Final = 1_500
"""Batches that a quick simulation looks at."""
_SAMPLES: Final = 40_000
_FITTED: Final = 50_000
"""Times are fitted to the trace of a run of at most so many batches: every event is read for it."""
_FIT_S: Final = 20.0


@dataclass(frozen=True)
class Answer:
    """What one change would give."""

    change: str
    tokens_per_s: float
    gain: float
    """Relative to the same quick simulation without the change: 0.2 is 20 % more."""
    free: bool = False
    """Whether it needs no other hardware."""


def question_of(run: Run, why: list[str] | None = None) -> dict[str, Any] | None:
    """A file that stands for the run in simulations; None where the run does not say enough, `why` gets the reason.

    The run's own file where it can be simulated as it is; else (a training) its batches, with times fitted to its
    trace.
    """
    why = [] if why is None else why
    config = run.summary["config"]
    if not run.summary["throughput"]["tokens_per_s"]:
        why.append("the run trained nothing")
        return None
    if not isinstance(config.get("topology"), dict):
        why.append("the summary does not say the run's topology")
        return None
    if can_ask(config):
        return shortened(config)
    recorded, unknown = run.recorded, "the run's file has no timings and data that could be simulated"
    if recorded is None:
        why.append(f"{unknown}, and there is no trace to fit times to")
        return None
    if recorded.header.planned > _FITTED:
        why.append(f"{unknown}, and its trace is too long to fit times to (over {_FITTED:,} batches)")
        return None
    timings = _fitted(run.path, why)
    if timings is None:
        return None
    slots, length = (recorded.plan[column][:MOST_BATCHES].tolist() for column in ("slots", "length"))
    kept = {key: config[key] for key in ("topology", "feed", "dispatch", "memory") if key in config}
    wanted = ("sync", "accumulate", "anchors")
    training = {key: value for key, value in section(config, "training").items() if key in wanted}
    buckets = {key: value for key, value in section(config, "data").items() if key == "buckets" and value}
    batches = [{"tokens": tokens, "length": longest} for tokens, longest in zip(slots, length, strict=True)]
    data = {"batches": batches, **buckets}
    return {**kept, "topology": _plain(config["topology"]), "training": training, "data": data, "fitted": timings}


class Questions:
    """Simulations of one file: as it is, with one target more, with one drafter more, and under every policy."""

    def __init__(self, question: Mapping[str, Any], *, policies: bool = True) -> None:
        self._late: list[str] = []
        self._failed: dict[str, list[str]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="dflash-report-")
        self._file = Path(self._folder.name) / "pipeline.json"
        config = dict(question)
        if "fitted" in config:
            timings = Path(self._folder.name) / "timings.json"
            timings.write_text(config.pop("fitted"), encoding="utf-8")
            config["timings"] = {"file": str(timings)}
        self._file.write_text(json.dumps(config), encoding="utf-8")
        topology = config.get("topology", {})
        self._asked = {"": self._ask("run")}
        for role in ("targets", "drafters"):
            count = topology.get(role)
            if isinstance(count, int):
                change = f"one {role[:-1]} more ({count + 1})"
                self._asked[change] = self._ask("run", "--set", f"topology.{role}={count + 1}")
        self._policies = self._ask("compare") if policies else None

    def answers(self, seconds: float) -> list[Answer]:
        """Those that came in time, best first."""
        end = time.monotonic() + seconds
        found = {change: self._rates(change, process, end) for change, process in self._asked.items()}
        base = found.pop("")
        answers = [
            Answer(change, rates.steady or rates.whole, cautious(base, rates))
            for change, rates in found.items()
            if rates is not None and base is not None
        ]
        answers += self._other_policies(end)
        self._folder.cleanup()
        return sorted(answers, key=lambda answer: -answer.gain)

    @property
    def why(self) -> str | None:
        """Which simulations gave no answer, and why; None where all did."""
        said = [f"{', '.join(names)}: {reason}" for reason, names in self._failed.items()]
        if self._late:
            said.append(f"{', '.join(self._late)}: took too long, give more time with --what-if")
        return "; ".join(said) or None

    def _ask(self, command: str, *more: str) -> "subprocess.Popen[bytes]":
        out = tempfile.mkdtemp(dir=self._folder.name)
        words = [sys.executable, "-m", "dflash_sim", command, str(self._file), *more, "--json", "-o", out]
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment())

    def _other_policies(self, end: float) -> list[Answer]:
        document = None if self._policies is None else self._answer("the other policies", self._policies, end)
        if document is None:
            return []
        found = {entry["policy"]: _rates_of(entry["summary"]) for entry in document["policies"]}
        base = found.pop(document["base"])
        return [
            Answer(f"policy {policy}", rates.steady or rates.whole, cautious(base, rates), free=True)
            for policy, rates in found.items()
        ]

    def _rates(self, change: str, process: "subprocess.Popen[bytes]", end: float) -> "Rates | None":
        document = self._answer(change or "the run as it is", process, end)
        return None if document is None else _rates_of(document)

    def _answer(self, name: str, process: "subprocess.Popen[bytes]", end: float) -> dict[str, Any] | None:
        """The JSON that a command wrote; None where it failed or took too long."""
        try:
            text, said = process.communicate(timeout=max(end - time.monotonic(), 0.05))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            self._late.append(name)
            return None
        if process.returncode != 0:
            self._failed.setdefault(_first_line(said, process.returncode), []).append(name)
            return None
        document = json.loads(text)
        return document if isinstance(document, dict) else None


def can_ask(config: Mapping[str, Any]) -> bool:
    """Whether the file says enough for a simulation, and its files are still there."""
    timings, data = config.get("timings"), config.get("data")
    if not isinstance(timings, dict) or not isinstance(data, dict):
        return False
    files = [timings.get("file"), data.get("lengths")]
    return all(Path(file).is_file() for file in files if isinstance(file, str))


def shortened(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same pipeline with as much of its data as a quick simulation needs, and without planned faults."""
    data = dict(config["data"])
    if isinstance(data.get("batches"), int):
        data["batches"] = min(data["batches"], MOST_BATCHES)
    elif isinstance(data.get("batches"), list):
        data["batches"] = data["batches"][:MOST_BATCHES]
    elif data.get("tokens") is not None and data.get("lengths") is None:
        data["tokens"] = min(data["tokens"], MOST_BATCHES * data.get("batch_tokens", 1))
    if isinstance(data.get("lengths"), dict) and isinstance(data["lengths"].get("count"), int):
        data["lengths"] = {**data["lengths"], "count": min(data["lengths"]["count"], _SAMPLES)}
    elif isinstance(data.get("lengths"), list):
        data["lengths"] = data["lengths"][:_SAMPLES]
    kept = {key: value for key, value in config.items() if key not in ("faults", "stop", "model")}
    return {**kept, "topology": _plain(config.get("topology", {})), "data": data | {"epochs": 1}}


def _fitted(folder: Path, why: list[str]) -> str | None:
    """The timings of a recorded run, as `dflash-sim fit` writes them; else `why` gets the reason."""
    with tempfile.TemporaryDirectory(prefix="dflash-report-") as scratch:
        out = Path(scratch) / "timings.json"
        words = [sys.executable, "-m", "dflash_sim", "fit", str(folder), "-o", str(out)]
        try:
            done = subprocess.run(words, capture_output=True, env=_environment(), timeout=_FIT_S, check=False)
        except subprocess.TimeoutExpired:
            why.append(f"times could not be fitted to the trace within {_FIT_S:g} s")
            return None
        if done.returncode == 0 and out.is_file():
            return out.read_text(encoding="utf-8")
        why.append(f"times could not be fitted to the trace: {_first_line(done.stderr, done.returncode)}")
        return None


def _first_line(said: bytes, status: int) -> str:
    return one_line(said.decode(errors="replace").strip().partition("\n")[0]) or f"status {status}"


def _plain(topology: Mapping[str, Any]) -> dict[str, Any]:
    """Without devices: another worker would need one more of them."""
    return {key: value for key, value in topology.items() if key in ("targets", "drafters")}


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _rates_of(summary: Mapping[str, Any]) -> Rates:
    rates = summary["throughput"]
    return Rates(rates["tokens_per_s"] or 0.0, rates["steady_tokens_per_s"])
