"""The models of a training: the frozen target and its tapped states, the drafter and its losses."""
