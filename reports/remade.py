"""A summary made again from a trace, for a run that was killed before it wrote its own."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from reports.counted import metrics_of_columns
from reports.memory import unknown_memory
from reports.recorded import Recorded
from reports.summary import Facts, summarize
from reports.summaryfile import section

CUT_OFF: Final = "interrupted"
"""The stop reason of a run whose trace does not say how it ended."""


@dataclass(frozen=True, eq=False)
class _Plan:
    """What `summarize` reads of a batch plan."""

    tokens: NDArray[np.int64]
    slots: NDArray[np.int64]
    samples: NDArray[np.int64]

    @property
    def count(self) -> int:
        return len(self.tokens)


def summary_of(recorded: Recorded) -> dict[str, Any]:
    """The summary by the accumulator's numbers. What only the run itself knew (memory, alternatives) is left out."""
    header, config = recorded.header, recorded.header.config
    metrics = metrics_of_columns(recorded)
    metrics.ended = metrics.ended or CUT_OFF
    facts = Facts(
        kind=header.kind,
        policy=str(section(config, "dispatch").get("policy", "unknown")),
        seed=int(config.get("seed", 0)),
        config=config,
        anchors=section(config, "training").get("anchors"),
        memory=dict(unknown_memory(header.drafters, header.targets)),
    )
    plan = _Plan(*(recorded.plan[column] for column in ("tokens", "slots", "samples")))
    return summarize(metrics, plan, facts)
