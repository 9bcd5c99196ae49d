"""A limit of how many requests may be under way at once, with a share for each class. Pure."""

from .qos import SHARES, Qos


def has_place(under_way: int, most: int, qos: Qos) -> bool:
    """May one more of this class begin?"""
    return under_way < most * SHARES[qos]
