"""Topics, made and deleted on the masters of all broker sets.

A topic's queues are dealt to the sets evenly, as many to each as its share rounded up. Nothing is
ordered before every set that is known has a master. An order that only some of them carried out
ends as one whose outcome is unknown: whoever orders, orders again, and what stands is done.
"""

from collections.abc import Mapping

from clusters.flotilla.net.wire import Json, Op, Status

from .calls import ERRORS, Calls, Refused


class Topics:
    """Orders that change topics, and what the masters know."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def create(self, topic: str, queues: int) -> None:
        masters = await self._calls.all_masters()
        share = -(-queues // len(masters))
        await self._order(masters, Op.TOPIC_CREATE, {"topic": topic, "queues": share})

    async def delete(self, topic: str) -> None:
        """Refused, TOPIC_NOT_EXIST: no set has it."""
        await self._order(await self._calls.all_masters(), Op.TOPIC_DELETE, {"topic": topic})

    async def _order(self, masters: Mapping[str, str], op: Op, fields: Json) -> None:
        done, absent = False, None
        for address in masters.values():
            try:
                await self._calls.ask(address, op, fields)
                done = True
            except ERRORS as e:
                if isinstance(e, Refused) and e.status == Status.TOPIC_NOT_EXIST:
                    absent = e
                elif done:
                    why = f"it stands on another set, but not here: {e}"
                    raise Refused(address, Status.SYSTEM_ERROR, why) from e
                else:
                    raise
        if absent and not done:
            raise absent

    async def all(self) -> Mapping[str, int]:
        """Topics and their queues, on all sets that have a master, as those say."""
        found: dict[str, int] = {}
        for address in (await self._calls.masters()).values():
            reply = await self._calls.ask(address, Op.METADATA, {})
            for topic, queues in reply["topics"].items():
                found[topic] = found.get(topic, 0) + int(queues)
        return found
