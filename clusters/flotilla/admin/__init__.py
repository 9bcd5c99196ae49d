"""The operator's tool: `python -m clusters.flotilla admin COMMAND` (spec 2, mqadmin).

A command line becomes an `Order` (command_line), whose command asks the cluster through a `Reach`
and gives an `Answer`: tables for people, one JSON object for machines. Exit codes:

    0   it is done
    1   the cluster refused; the sentence names its status
    2   nobody answered in time, or not with what was asked for: a change may have been made or not
    64  the command line makes no sense

It keeps nothing and needs nothing but addresses, so it runs wherever the cluster can be reached.
"""

import asyncio
from collections.abc import Sequence

from clusters.flotilla.client.calls import Refused
from clusters.flotilla.net.connection import CallTimeout, ConnectionLost, Unreachable
from clusters.flotilla.net.wire import NONSENSE
from clusters.flotilla.world.ports import Process, real

from .answer import refused_json
from .command_line import Help, Misused, Order, understand
from .reach import Reach

DONE, REFUSED, SILENCE, USAGE, INTERRUPTED = 0, 1, 2, 64, 130


def run(words: Sequence[str]) -> int:
    """The exit code of this command line on this machine."""
    try:
        return asyncio.run(operate(words, real().process))
    except KeyboardInterrupt:
        return INTERRUPTED


async def operate(words: Sequence[str], process: Process) -> int:
    """The exit code of a command line. `process`: where its answer is said."""
    try:
        order = understand(words)
    except Help as e:
        process.say(str(e).rstrip())
        return DONE
    except Misused as e:
        process.complain(str(e))
        return USAGE
    return await _carry_out(order, process)


async def _carry_out(order: Order, process: Process) -> int:
    reaching = Reach.of(order.controllers, order.nameservers, order.timeout_s)
    try:
        async with asyncio.timeout(order.timeout_s), reaching as reach:
            answer = await order.command.carry_out(reach, order.options)
    except Refused as e:
        if order.json:
            process.say(refused_json(e.status, e.remark))
        process.complain(f"{e.status.name}: {e.remark or e}")
        return REFUSED
    except TimeoutError:
        process.complain(f"no answer within {order.timeout_s:g} s; the outcome is unknown")
        return SILENCE
    except Unreachable as e:
        process.complain(f"nobody answered: {e}")
        return SILENCE
    except (ConnectionLost, CallTimeout) as e:
        process.complain(f"no answer came; the outcome is unknown: {e}")
        return SILENCE
    except NONSENSE as e:
        process.complain(f"the answer is none of Flotilla's: {type(e).__name__}: {e}")
        return SILENCE
    process.say(answer.json() if order.json else answer.text())
    return DONE
