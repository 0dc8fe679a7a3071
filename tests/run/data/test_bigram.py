"""The bigram, by hand and by a slower count."""

from pathlib import Path

import numpy as np
import pytest

from dflash_run.data.bigram import NOTHING, bigram_accepted_length, bigram_successors
from dflash_run.data.corpus import Corpus, prepare_corpus
from policies.sections.data import Data
from policies.sections.training import Model
from tests.run.data.test_corpus import write


def _corpus(folder: Path, samples: list[dict[str, list[int]]]) -> Corpus:
    return prepare_corpus(Data(path=str(write(folder / "a.jsonl", samples))), Model())


def test_the_most_frequent_supervised_successor_wins_and_ties_go_to_the_lowest(tmp_path: Path) -> None:
    one = {"input_ids": [0, 2, 0, 1, 0, 2, 3, 3], "loss_mask": [1, 1, 1, 1, 1, 1, 0, 1]}
    successors = bigram_successors(_corpus(tmp_path, [one]), np.array([0]))
    assert successors.tolist() == [2, 0, 0, 3]  # 2 → 3 is not supervised
    tied = bigram_successors(_corpus(tmp_path, [{"input_ids": [0, 2, 0, 1, 3]}]), np.array([0]))
    assert tied.tolist() == [1, 3, 0, NOTHING]


def test_the_accepted_length_is_the_mean_run_over_all_anchors(tmp_path: Path) -> None:
    train = {"input_ids": [0, 1, 2, 3, 0, 1, 2, 3]}
    held_out = {"input_ids": [0, 1, 2, 2, 3], "loss_mask": [1, 1, 1, 1, 1]}
    corpus = _corpus(tmp_path, [train, held_out])
    # Anchors 0: 1 2 then 3 ≠ 2; 1: 2; 2: 3 ≠ 2; 3: 3 and the end.
    expected = (2 + 1 + 0 + 1) / 4
    assert bigram_accepted_length(corpus, np.array([0]), np.array([1]), 4) == pytest.approx(expected)
    assert bigram_accepted_length(corpus, np.array([0]), np.array([1]), 2) == pytest.approx(3 / 4)
    assert bigram_accepted_length(corpus, np.array([0]), np.array([], np.int64), 4) == 0.0


def test_tokens_without_loss_end_a_run_and_start_none(tmp_path: Path) -> None:
    train = {"input_ids": [0, 1, 0, 1, 0, 1]}
    held_out = {"input_ids": [0, 1, 0, 1, 0], "loss_mask": [0, 1, 1, 0, 1]}
    corpus = _corpus(tmp_path, [train, held_out])
    assert bigram_accepted_length(corpus, np.array([0]), np.array([1]), 4) == 1.0
