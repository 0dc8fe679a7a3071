"""A training that fits on a laptop: a small target made on the spot, and its own responses as the data."""
