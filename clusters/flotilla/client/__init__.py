"""Flotilla's client library: one `Client` per process, shared by everything in it.

    client = Client(Settings.of({"namesrvAddr": ["198.18.1.1:9876"]}))
    client.start()
    client.producer.send("orders", 0, b"key", b"body", done)     # done(Result), exactly once
    pulled = await client.consumer.pull("orders", 0, 0, 32, wait_s=1.0)

What an application may conclude from an answer, or from none, is one table in `outcomes`.
"""

from collections.abc import Mapping

from .calls import Calls
from .consumer import Consumer
from .group import GroupMember
from .links import Links
from .offline import OfflineReader
from .outcomes import Outcome, overall
from .place import Place
from .producer import Overall, Producer, Result
from .routes import Routes
from .settings import Settings
from .topics import Topics

__all__ = [
    "Client",
    "Consumer",
    "GroupMember",
    "OfflineReader",
    "Outcome",
    "Place",
    "Producer",
    "Result",
    "Routes",
    "Settings",
    "Topics",
]


class Client:
    """A route cache, a connection to each broker, a producer, consumers and orders on them."""

    def __init__(self, settings: Settings, overall: Overall = overall) -> None:
        self.routes = Routes(settings)
        self._links = Links(settings.connect_timeout_s, settings.retry_backoff_s)
        self.producer = Producer(settings, self.routes, self._links, overall)
        self.calls = Calls(settings, self.routes, self._links)
        self.consumer = Consumer(settings, self.routes, self.calls)
        self.offline = OfflineReader(settings, self.consumer)
        self.topics = Topics(self.calls)
        self._settings = settings

    def member(self, group: str, client: str, topics: Mapping[str, int]) -> GroupMember:
        """A consumer of a group, to be started and closed."""
        return GroupMember(self._settings, self.calls, group, client, topics)

    def start(self) -> None:
        self.routes.start()

    def close(self) -> None:
        """Open sends complete at once, with what is known of them."""
        self.producer.close()
        self.routes.close()
        self._links.close()
