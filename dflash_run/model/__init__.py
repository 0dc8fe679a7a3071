"""The models of a training: the frozen target and its tapped states, the frozen embedding and head, the drafter."""
