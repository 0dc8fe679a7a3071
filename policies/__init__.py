"""Dispatch decisions: the dispatcher, the policies, the pipeline description, the batch plan."""
