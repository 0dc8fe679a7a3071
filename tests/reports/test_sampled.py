"""Long series of samples: read in little memory, and their means are means over time."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from reports.draw.training import devices, thin_by_time
from reports.sampled import Samples, read_devices, read_scalars, spans


def test_a_file_of_a_line_a_second_is_read_in_memory_that_does_not_grow_with_it(tmp_path: Path) -> None:
    line = '{{"time_s": {0}.25, "device": "cuda:0", "utilization": {1}, "memory_bytes": {0}}}\n'
    text = "".join(line.format(second, 0.5 + 0.5 * (second > 75_000)) for second in range(1, 100_001))
    (tmp_path / "devices.jsonl").write_text(text)
    tracemalloc.start()
    found = read_devices(tmp_path, [])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None and peak < 10e6
    times, values = found["utilization/cuda:0"]
    assert len(times) < 33_000 and times[-1] == 100_000.25
    assert np.average(values, weights=spans(times)) == pytest.approx(0.625, abs=1e-4)


def test_lines_of_scalars_do_not_all_lie_in_memory_as_they_are_read(tmp_path: Path) -> None:
    lines = (json.dumps({"step": step, "loss": 1 / step, "lr": 1e-3, "grad_norm": 1.0}) for step in range(1, 20_001))
    (tmp_path / "scalars.jsonl").write_text("\n".join(lines))
    tracemalloc.start()
    found = read_scalars(tmp_path, [])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None and len(found["loss"][0]) == 20_000 and peak < 5e6


def test_the_use_of_a_device_is_a_mean_over_time_and_not_over_samples() -> None:
    """An hour of a sample a second, idle; then nine hours of one in five minutes, busy."""
    times = np.concatenate([np.arange(1.0, 3_601), np.arange(3_900.0, 36_001, 300)])
    values = np.where(times > 3_600, 1.0, 0.0)
    plate = devices("k", "run", Samples({"utilization/cuda:0": (times, values)}))
    assert plate is not None and "cuda:0 90%" in plate.alt


def test_parts_of_a_devices_line_are_equally_long_where_samples_lie_ever_further_apart() -> None:
    times = np.cumsum(np.linspace(1.0, 30.0, 4_000))
    shown_s, shown = thin_by_time(times, times / times[-1], 100)
    assert len(shown_s) == 100
    assert np.diff(shown_s) == pytest.approx(times[-1] / 100, rel=0.2)
    assert shown == pytest.approx(shown_s / times[-1])


@pytest.mark.parametrize("times", [[], [4.0], [4.0, 4.0, 4.0]])
def test_samples_of_one_moment_have_a_mean(times: list[float]) -> None:
    weights = spans(np.array(times))
    assert len(weights) == len(times) and (weights > 0).all()
