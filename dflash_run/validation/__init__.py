"""Predictions put to the test: profile, predict, train, compare; and again from what was kept, without a GPU."""
