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


def test_where_one_run_was_never_steady_whole_runs_are_ranked() -> None:
    steady = {"quantity": "steady throughput", "predicted": 5.0, "measured": 4.0}
    whole = {"quantity": "throughput", "predicted": 3.0, "measured": 2.0}
    assert ranked({"a": [whole, steady], "b": [whole, steady]}) == [Ranked("a", 5.0, 4.0), Ranked("b", 5.0, 4.0)]
    never = {**steady, "measured": None}
    assert ranked({"a": [whole, steady], "b": [whole, never]}) == [Ranked("a", 3.0, 2.0), Ranked("b", 3.0, 2.0)]
