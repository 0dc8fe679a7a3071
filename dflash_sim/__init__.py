"""Predicts a pipeline: a SimPy driver over the dispatcher."""
