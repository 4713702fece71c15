"""A method that this machine, this version or this shape does not have."""


class Unavailable(Exception):
    """Says in one sentence why."""
