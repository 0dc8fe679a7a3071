"""The order of policies, as predicted and as measured."""

from dflash_run.validation.ranking import Ranked, out_of_order, ranked, text


def test_a_case_that_ranks_otherwise_than_predicted_is_named() -> None:
    lone, ours = Ranked("round_robin", 100.0, 90.0), Ranked("shared", 110.0, 85.0)
    assert out_of_order([lone, ours]) == [
        "shared was predicted 10.0% above round_robin, and came out 5.6% below"
    ]
    assert "ranked as predicted" not in text([lone, ours])


def test_small_predicted_gaps_may_come_out_either_way() -> None:
    cases = [Ranked("round_robin", 100.0, 90.0), Ranked("rotating", 102.0, 88.0)]
    assert out_of_order(cases) == [] and text(cases).endswith("ranked as predicted")
    assert "+2.0% -2.2%" in text(cases)


def test_runs_too_short_for_a_steady_rate_are_not_ranked() -> None:
    row = {"quantity": "steady throughput", "predicted": 5.0, "measured": None}
    whole = {**row, "measured": 4.0}
    assert ranked({"short": [row], "long": [whole]}) == [Ranked("long", 5.0, 4.0)]
