"""Flotilla's client library: one `ClusterClient` per process, shared by everything in it.

    client = ClusterClient(ClientSettings.of({"namesrvAddr": ["198.18.1.1:9876"]}))
    client.start()
    client.producer.send("orders", 0, b"key", b"body", done)  # done(SendResult), exactly once
    reply = await client.consumer.pull("orders", 0, 0, 32, wait_s=1.0)

`outcomes` is the one table of what an application may conclude from an answer, or from none.
"""

from collections.abc import Mapping
from dataclasses import replace

from .admin import TopicAdmin
from .broker_connections import BrokerConnections
from .calls import Calls
from .consumer import Consumer, ConsumerGroupMember
from .outcomes import CallOutcome, overall
from .producer import FlotillaProducer, Overall, SendResult
from .route_cache import QueueLocation, RouteCache
from .settings import ClientSettings

__all__ = [
    "CallOutcome",
    "ClientSettings",
    "ClusterClient",
    "Consumer",
    "ConsumerGroupMember",
    "FlotillaProducer",
    "QueueLocation",
    "RouteCache",
    "SendResult",
    "TopicAdmin",
]


class ClusterClient:
    """A route cache, a connection to each broker, a producer, a consumer and topic commands.

    With `zoneMode` the producer has a route cache of its own, with the sets near it. Consumers and
    commands reach all sets: what was sent from another zone has to be read as well.
    """

    def __init__(self, settings: ClientSettings, overall: Overall = overall) -> None:
        self.routes = RouteCache(replace(settings, zone=""))
        near = RouteCache(settings) if settings.zone else self.routes
        self._caches = [self.routes, near] if settings.zone else [self.routes]
        self._connections = BrokerConnections(settings.connect_timeout_s, settings.retry_backoff_s)
        self.producer = FlotillaProducer(settings, near, self._connections, overall)
        self.calls = Calls(settings, self.routes, self._connections)
        self.consumer = Consumer(settings, self.routes, self.calls)
        self.topics = TopicAdmin(self.calls)
        self._settings = settings

    def member(self, group: str, client: str, topics: Mapping[str, int]) -> ConsumerGroupMember:
        """Return a member of a consumer group; the caller starts and closes it."""
        return ConsumerGroupMember(self._settings, self.calls, group, client, topics)

    def start(self) -> None:
        for routes in self._caches:
            routes.start()

    def close(self) -> None:
        """Close all connections. Open sends complete at once, with the outcome so far."""
        self.producer.close()
        for routes in self._caches:
            routes.close()
        self._connections.close()
