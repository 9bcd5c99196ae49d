"""Which brokers a container has, from its own events, and what is wrong with that. Pure.

An event `inner` has an action:

    restored   a process begins, with the brokers that were added (`brokers`) and removed (`gone`)
    starting   a broker begins to start
    started    it serves
    added      an operator's request to add it was carried out, and is remembered
    removing   an operator's request to remove it is carried out
    removed    it has ended
    failed     it has ended by itself, or did not start
    refused    it was not accepted: one that is there, or the store of one

What an operator asked for counts from the event on, which the container writes when the change is
on its disk; a container that ends between the two may have made it. A container with
`containerRemembers = false`, which promises nothing, restores nothing: the event has `remembers`.
"""

from collections.abc import Iterator

from clusters.systems.flotilla.law_state import Fields, Law

PRESENT = "is in this container already"  # the end of a refusal


class InnerBrokers:
    """The brokers of one container."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.checked: tuple[Law, ...] = ()  # by the last event
        self._stores: dict[str, str] = {}  # of the brokers that are there
        self._added: set[str] = set()  # those that a restart must bring back
        self._removed: set[str] = set()  # those that it must not bring back
        self._damages = 0

    def read(self, fields: Fields, damages: int) -> Iterator[tuple[Law, str]]:
        """Read an event; yield violations. `damages`: how often the container's disk has lost what
        was synced."""
        name, store = str(fields.get("brokerName", "")), str(fields.get("storePath", ""))
        if damages != self._damages:
            self._damages = damages
            self._added.clear()
            self._removed.clear()
        self.checked = ()
        match fields["action"]:
            case "restored":
                yield from self._restored(fields)
            case "starting":
                self.gone.discard(name)
                self._removed.discard(name)
            case "started":
                yield from self._started(name, store)
            case "added":
                self._added.add(name)
            case "removing":
                self._added.discard(name)
            case "removed" | "failed":
                self._stores.pop(name, None)
                self.gone.add(name)
                if fields["action"] == "removed":
                    self._removed.add(name)
            case "refused":
                yield from self._refused(name, str(fields["why"]))

    def _restored(self, fields: Fields) -> Iterator[tuple[Law, str]]:
        self._stores.clear()
        self.gone.clear()
        if not fields["remembers"]:
            self._added.clear()
            self._removed.clear()
            return
        self.checked = (Law.INNER_FORGOTTEN,)
        for name in sorted(self._removed - set(fields["gone"])):
            yield Law.INNER_FORGOTTEN, f"{name} was removed, and is there after a restart"
        for name in sorted(self._added - set(fields["brokers"])):
            yield Law.INNER_FORGOTTEN, f"{name} was added, and is forgotten after a restart"
        self._added &= set(fields["brokers"])

    def _started(self, name: str, store: str) -> Iterator[tuple[Law, str]]:
        self.checked = (Law.STORE_SHARED,)
        for other, path in self._stores.items():
            if path == store and other != name:
                yield Law.STORE_SHARED, f"{other} and {name} have one store, {store}"
        self._stores[name] = store

    def _refused(self, name: str, why: str) -> Iterator[tuple[Law, str]]:
        """A broker that is not there cannot be a reason to refuse one."""
        self.checked = (Law.GHOST_BROKER,)
        if why.endswith(PRESENT) and name not in self._stores:
            yield Law.GHOST_BROKER, f"{name} was refused because it is there, and it is not"
