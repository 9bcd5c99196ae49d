"""All commands of the operator's tool, in the order in which they are told of."""

from . import control, group_offsets, node_settings, sets, topic_list
from .command import Command

COMMANDS: tuple[Command, ...] = (
    *sets.COMMANDS,
    *control.COMMANDS,
    *topic_list.COMMANDS,
    *group_offsets.COMMANDS,
    *node_settings.COMMANDS,
)
