"""What a training keeps of its GPUs' use: everything of the first minutes, and of weeks no more than a small file."""

import json
from pathlib import Path

import pytest

from dflash_run.training.readings import Reading, Readings
from reports.sampled import read_devices

DAY_S = 86_400
BUSY, IDLE = Reading(0.9, 5), Reading(0.0, 3)


def after(seconds: int, gpus: int = 1) -> list[dict[str, float]]:
    """The lines of so many seconds with a reading a second, a little late each time."""
    readings, lines = Readings(), []
    for second in range(1, seconds + 1):
        lines += readings.add(second + (second % 7) * 1e-3, dict.fromkeys(range(gpus), BUSY))
    return lines + readings.rest()


def test_every_reading_of_the_first_minutes_has_its_line() -> None:
    lines = after(480, gpus=2)
    assert len(lines) == 960 and [line["device"] for line in lines[:3]] == ["cuda:0", "cuda:1", "cuda:0"]
    assert lines[0] == {"time_s": 1.001, "device": "cuda:0", "utilization": 0.9, "memory_bytes": 5}


def test_a_week_leaves_a_few_thousand_lines_a_gpu_and_none_stands_for_more_than_five_minutes() -> None:
    lines = after(7 * DAY_S)
    times = [line["time_s"] for line in lines]
    assert len(lines) < 6_000 and times[-1] >= 7 * DAY_S
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
    assert max(gaps) < 302 and all(gap <= 2 + 0.002 * at for gap, at in zip(gaps, times, strict=False))


def test_a_line_that_stands_for_many_readings_has_their_mean_use_and_their_most_memory() -> None:
    readings = Readings()
    assert len(readings.add(10_000.0, {0: BUSY})) == 1
    for second in range(1, 20):
        assert readings.add(10_000.0 + second, {0: BUSY if second % 2 else IDLE}) == []
    (line,) = readings.add(10_020.0, {0: IDLE})
    assert line == {"time_s": 10_020.0, "device": "cuda:0", "utilization": 0.45, "memory_bytes": 5}
    assert readings.rest() == []


def test_what_a_driver_does_not_tell_is_left_out() -> None:
    readings = Readings()
    assert readings.add(1.0, {0: Reading(None, 7), 1: Reading(None, None)}) == [
        {"time_s": 1.0, "device": "cuda:0", "memory_bytes": 7}
    ]


def test_a_report_reads_what_was_written(tmp_path: Path) -> None:
    lines = after(DAY_S)
    (tmp_path / "devices.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_devices(tmp_path, [])
    assert found is not None and len(found["utilization/cuda:0"][0]) == len(lines)
    assert found["memory_bytes/cuda:0"][1] == pytest.approx(5)
