"""The operator's tool, `python -m clusters.flotilla admin COMMAND`; RocketMQ's is mqadmin.

`command_line` parses the arguments into an `Invocation`. Its command asks the cluster through
`ClusterAccess` and returns a `CommandOutput`: tables for people, or one JSON object. Exit codes:

    0   the command succeeded
    1   the cluster refused; the message names the status
    2   no answer in time, or an invalid one: a change may or may not have been made
    64  the command line is wrong

The tool stores nothing and needs only addresses, so it runs on any machine that reaches the
cluster.
"""

import asyncio
from collections.abc import Sequence

from clusters.flotilla.client.calls import CallRefused
from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Unreachable
from clusters.flotilla.net.wire import DECODE_ERRORS
from clusters.flotilla.world.ports import NodeProcess, real

from .cluster_access import ClusterAccess
from .command_line import HelpRequest, Invocation, UsageError, parse_command_line
from .output import refused_json

DONE, REFUSED, NO_ANSWER, USAGE, INTERRUPTED = 0, 1, 2, 64, 130


def run(arguments: Sequence[str]) -> int:
    """Run a command line on this machine; return the exit code."""
    try:
        return asyncio.run(run_command(arguments, real().process))
    except KeyboardInterrupt:
        return INTERRUPTED


async def run_command(arguments: Sequence[str], process: NodeProcess) -> int:
    """Run a command line and print the output through `process`; return the exit code."""
    try:
        invocation = parse_command_line(arguments)
    except HelpRequest as e:
        process.print_line(str(e).rstrip())
        return DONE
    except UsageError as e:
        process.print_error(str(e))
        return USAGE
    return await _run_invocation(invocation, process)


async def _run_invocation(invocation: Invocation, process: NodeProcess) -> int:
    access = ClusterAccess.of(invocation.controllers, invocation.nameservers, invocation.timeout_s)
    try:
        async with asyncio.timeout(invocation.timeout_s), access as cluster:
            output = await invocation.command.carry_out(cluster, invocation.options)
    except CallRefused as e:
        if invocation.json:
            process.print_line(refused_json(e.status, e.remark))
        process.print_error(f"{e.status.name}: {e.remark or e}")
        return REFUSED
    except TimeoutError:
        process.print_error(f"no answer within {invocation.timeout_s:g} s; the outcome is unknown")
        return NO_ANSWER
    except Unreachable as e:
        process.print_error(f"no node answered: {e}")
        return NO_ANSWER
    except (ConnectionLost, CallTimeout) as e:
        process.print_error(f"no answer came; the outcome is unknown: {e}")
        return NO_ANSWER
    except DECODE_ERRORS as e:
        process.print_error(f"the answer is not a Flotilla node's: {type(e).__name__}: {e}")
        return NO_ANSWER
    process.print_line(output.json() if invocation.json else output.text())
    return DONE
