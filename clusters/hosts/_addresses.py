"""Addresses of nodes that have a network of their own: 198.18.0.0/15, reserved for tests (RFC
2544).
"""

NODES_PER_BLOCK = 200


def address(index: int) -> str:
    """Return the address of the node with this index."""
    block, place = divmod(index, NODES_PER_BLOCK)
    return f"198.18.{block + 1}.{place + 11}"
