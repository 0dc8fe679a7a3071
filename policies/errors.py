"""The two errors of the dispatcher; they say whose fault it is."""


class PolicyError(ValueError):
    """A policy broke a rule of the dispatcher; the message names the policy, what it answered and the rule."""


class ProtocolError(AssertionError):
    """A driver reported something that cannot have happened: a fault of the driver, never of a user."""
