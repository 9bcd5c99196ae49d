"""How a broker opens its store, or says why it can not, and how it leaves it."""

from ..config import Config
from ..events import EventLog
from ..replication.replica import Replica
from ..rules import Rules
from ..store import recovery
from ..store.commit_log import StoreError
from ..store.flushing import Flushing
from ..world.ports import Ports


def place_of(config: Config) -> recovery.Place:
    flushing = Flushing(
        config.sync_flush,
        config.flush_least_pages,
        config.flush_thorough_s,
        config.commit_interval_s if config.transient_store_pool else 0.0,
    )
    return recovery.Place(config.store, config.segment_size, config.max_message_size, flushing)


async def open_replica(config: Config, ports: Ports, rules: Rules, events: EventLog) -> Replica:
    try:
        found = await recovery.recover(place_of(config), ports, rules)
        _tell(found, events)
        return Replica(config, ports, rules, found.store, found.epochs, events)
    except (StoreError, ValueError) as e:
        why = f"{config.store} cannot be opened: {e}"
        events.write("fatal", why=why)
        ports.exit.fatal(why)


def _tell(found: recovery.Recovered, events: EventLog) -> None:
    store = found.store
    events.write(
        "recover",
        min=store.log.min_offset,
        max=store.log.max_offset,
        confirm=store.confirm_offset,
        records=found.records,
        scanned=found.scanned,
        clean=found.clean,
        notes=list(found.notes),
        epochs=[list(e) for e in found.epochs.entries],
    )


def leave_in_order(config: Config, ports: Ports) -> None:
    recovery.close(place_of(config), ports)
