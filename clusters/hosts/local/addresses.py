"""Addresses of nodes that have a network to themselves: of 198.18.0.0/15, which is for tests."""

NODES_PER_BLOCK = 200


def address(index: int) -> str:
    """The address of the node at this place in the list."""
    block, place = divmod(index, NODES_PER_BLOCK)
    return f"198.18.{block + 1}.{place + 11}"
