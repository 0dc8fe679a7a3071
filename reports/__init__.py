"""Metrics, verdict and pictures, computed from the event stream."""
