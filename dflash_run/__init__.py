"""Runs a pipeline for real."""
