"""A broker's metadata: topics, consumer groups, group offsets, and the progress of scans.

The catalog has one version (RocketMQ's DataVersion): the master's epoch and a counter. A master
numbers its changes. A slave holds the master's catalog as of some version and takes a newer one as
a whole, or as the changes in between. It never takes one of an older epoch, and it replaces the
catalog at once: RocketMQ deletes every topic before it adds the master's, and in between the slave
has none (apache/rocketmq#9804).

On disk are `topics.json` (topics and groups) and `consumerOffset.json`. Each file is replaced as a
whole and has a CRC and the version at which it was written. A loaded catalog has the older of the
two versions; applying the changes since then again has no effect. Files of the first edition have
offsets only, as rows without a version; they are read as version 0.

A commit never moves a group's offset back; a reset may. An offset beyond the end of its queue was
read from a log that has been truncated: a promotion lowers it to the end, or the group would skip
the messages written there next (apache/rocketmq#4771). A topic's offsets are deleted with it. A
topic that is created again continues the queue offsets of the deleted one. Topics never get fewer
queues, even if a request was made before a concurrent change was known.

Scans deliver special messages (special/delay.py). Their progress has the form of group offsets, but
may go back: a master that takes over decides from where it goes on. Brokers of earlier editions
ignore it, as they ignore offsets in topics that they do not have.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from ..net.wire import MAX_FRAME, Json, to_json
from ..world.ports import FileSystem, is_out_of_space

TOPICS_FILE, OFFSETS_FILE = "topics.json", "consumerOffset.json"
GroupQueue = tuple[str, str, int]  # group, topic, queue
MAX_CATALOG_BYTES = MAX_FRAME // 2  # of the catalog: a slave gets it in one frame


class Version(NamedTuple):
    """RocketMQ's DataVersion: the epoch of the master that made the change, and its number."""

    epoch: int = 0
    counter: int = 0

    def next(self) -> "Version":
        return Version(self.epoch, self.counter + 1)

    @classmethod
    def of(cls, raw: Any) -> "Version":
        epoch, counter = raw
        return cls(int(epoch), int(counter))


class MetadataChange(NamedTuple):
    """One change: a topic (value: queues, None if deleted), a group (value: its topics), a commit
    or a reset of a group's offset, or a number of a scan's progress (key: scan, topic, index; the
    value 0 is not kept)."""

    what: str
    key: Any
    value: Any


def topic(name: str, queues: int | None) -> MetadataChange:
    return MetadataChange("topic", name, queues)


def group(name: str, topics: Iterable[str]) -> MetadataChange:
    return MetadataChange("group", name, sorted(topics))


def commit(place: GroupQueue, offset: int) -> MetadataChange:
    return MetadataChange("commit", list(place), offset)


def reset(place: GroupQueue, offset: int) -> MetadataChange:
    return MetadataChange("reset", list(place), offset)


def change_is_held(offered: Version, held: Sequence[Version]) -> bool:
    """Return whether every member holds a change, so that it may be answered (strictMetadata)."""
    return all(version >= offered for version in held)


def may_adopt(ours: Version, theirs: Version) -> bool:
    """Return whether a slave may take the catalog of this master."""
    return theirs > ours


def commit_moves(offset: int, known: int) -> bool:
    """Return whether a commit of `offset` moves a group from `known`: forwards only."""
    return offset > known


class CatalogError(ValueError):
    """A file of the catalog is damaged; the text names it."""


class Catalog:
    """A broker's metadata."""

    def __init__(
        self,
        store: str,
        files: FileSystem,
        made_at_start: Mapping[str, int],
        commit_moves: Callable[[int, int], bool] = commit_moves,
    ) -> None:
        self.version = Version()
        self.topics: dict[str, int] = dict(made_at_start)
        self.groups: dict[str, tuple[str, ...]] = {}
        self._store, self._files = store, files
        self._commit_moves = commit_moves
        self._offsets: dict[GroupQueue, int] = {}
        self._acted: dict[GroupQueue, int] = {}  # commits made for an absent master (acting.py)
        self.progress: dict[GroupQueue, int] = {}  # of scans: by scan, topic, index
        self._unsaved: set[str] = set()
        self._saving = asyncio.Lock()
        self._bytes = MAX_CATALOG_BYTES  # an upper bound of its size as JSON
        self._load()

    def offset(self, place: GroupQueue) -> int:
        """Return the group's offset, -1 if it has none."""
        return self._offsets.get(place, -1)

    @property
    def dirty(self) -> bool:
        return bool(self._unsaved)

    # changes

    def apply(self, changes: Iterable[MetadataChange], version: Version) -> None:
        """Apply changes that lead to this version."""
        if version != self.version and self._acted:
            self._acted.clear()
            self._unsaved.add(OFFSETS_FILE)
        self.version = version
        for change in changes:
            self._bytes += self._growth(change)
            if change.what == "topic":
                self._set_topic(str(change.key), change.value)
            elif change.what == "group":
                self.groups[str(change.key)] = tuple(change.value)
                self._unsaved.add(TOPICS_FILE)
            elif change.what == "progress":
                self._set_progress(_place(change.key), int(change.value))
            else:
                self._set_offset(change)

    def act(self, changes: Iterable[MetadataChange]) -> None:
        """Make changes for an absent master; the version stays."""
        for change in changes:
            self.apply((change,), self.version)
            if change.what == "commit":
                place = _place(change.key)
                if place in self._offsets:
                    self._acted[place] = self._offsets[place]

    @property
    def acted(self) -> list[list[Any]]:
        """The offsets committed for an absent master: [group, topic, queue, offset]."""
        return [[*place, offset] for place, offset in sorted(self._acted.items())]

    def _set_topic(self, name: str, queues: int | None) -> None:
        self._unsaved.add(TOPICS_FILE)
        if queues is not None:
            self.topics[name] = max(int(queues), self.topics.get(name, 0))
            return
        self.topics.pop(name, None)
        for place in [p for p in self._offsets if p[1] == name]:
            del self._offsets[place]
            self._unsaved.add(OFFSETS_FILE)

    def _set_progress(self, place: GroupQueue, number: int) -> None:
        self._unsaved.add(OFFSETS_FILE)
        if number:
            self.progress[place] = number
        else:
            self.progress.pop(place, None)

    def _set_offset(self, change: MetadataChange) -> None:
        place, offset = _place(change.key), int(change.value)
        if place[1] not in self.topics:
            return  # the topic was deleted meanwhile
        if change.what == "reset" or self._commit_moves(offset, self._offsets.get(place, -1)):
            self._offsets[place] = offset
            self._unsaved.add(OFFSETS_FILE)

    def has_room(self, changes: Iterable[MetadataChange]) -> bool:
        """Return whether there is room for these changes. Existing entries may always change."""
        growth = sum(self._growth(change) for change in changes)
        if growth and self._bytes + growth > MAX_CATALOG_BYTES:
            self._bytes = len(to_json(self.copy()))
        return not growth or self._bytes + growth <= MAX_CATALOG_BYTES

    def _growth(self, change: MetadataChange) -> int:
        """Return roughly how many bytes a change adds."""
        if change.what == "topic":
            is_new = change.value is not None and change.key not in self.topics
        elif change.what == "group":
            is_new = self.groups.get(change.key) != tuple(change.value)
        elif change.what == "progress":
            is_new = tuple(change.key) not in self.progress
        else:
            is_new = tuple(change.key) not in self._offsets
        return len(to_json({"": change})) if is_new else 0

    def clamp(self, end_of: Callable[[str, int], int]) -> list[tuple[str, str, int, int]]:
        """Lower offsets beyond the end of their queue; return the rows as they were before."""
        lowered = []
        for place, offset in self._offsets.items():
            end = end_of(place[1], place[2])
            if offset > end:
                lowered.append((*place, offset))
                self._offsets[place] = end
                self._unsaved.add(OFFSETS_FILE)
        return lowered

    # copies

    def copy(self) -> Json:
        """Return the whole catalog as JSON."""
        return {"version": list(self.version), **self._topics_part(), **self._offsets_part()}

    def adopt(self, copy: Json) -> None:
        """Replace the catalog with a copy of the master's."""
        self._bytes = MAX_CATALOG_BYTES
        self.version = Version.of(copy["version"])
        self._acted.clear()
        self._take_topics(copy)
        self._take_offsets(copy)
        self._unsaved |= {TOPICS_FILE, OFFSETS_FILE}

    def _topics_part(self) -> Json:
        groups = {name: list(topics) for name, topics in sorted(self.groups.items())}
        return {"topics": dict(sorted(self.topics.items())), "groups": groups}

    def _offsets_part(self) -> Json:
        offsets = [[*place, offset] for place, offset in sorted(self._offsets.items())]
        progress = [[*place, number] for place, number in sorted(self.progress.items())]
        return {"offsets": offsets, **({"progress": progress} if progress else {})}

    def _offsets_in_file(self) -> Json:
        return {**self._offsets_part(), **({"acted": self.acted} if self._acted else {})}

    def _take_offsets_of_file(self, part: Json) -> None:
        self._take_offsets(part)
        self._acted = {_place(place): int(offset) for *place, offset in part.get("acted", ())}

    def _take_topics(self, part: Json) -> None:
        topics = {str(name): int(queues) for name, queues in part["topics"].items()}
        groups = {str(name): tuple(map(str, of)) for name, of in part["groups"].items()}
        self.topics, self.groups = topics, groups

    def _take_offsets(self, part: Json) -> None:
        self._offsets = {_place(place): int(offset) for *place, offset in part["offsets"]}
        self.progress = {_place(place): int(number) for *place, number in part.get("progress", ())}

    # files

    async def save(self) -> bool:
        """Write what has changed. Return False if the disk is full; then try again later."""
        async with self._saving:
            try:
                await self._save()
            except OSError as e:
                if not is_out_of_space(e):
                    raise
                return False
            return True

    async def _save(self) -> None:
        unsaved, self._unsaved = self._unsaved, set()
        try:
            for name in sorted(unsaved):
                part = self._topics_part() if name == TOPICS_FILE else self._offsets_in_file()
                await self._files.replace(f"{self._store}/{name}", _pack(self.version, part))
        except OSError:
            self._unsaved |= unsaved
            raise

    def _load(self) -> None:
        found = {}
        parts = ((TOPICS_FILE, self._take_topics), (OFFSETS_FILE, self._take_offsets_of_file))
        for name, take in parts:
            path = f"{self._store}/{name}"
            if not self._files.exists(path):
                continue
            try:
                part = _read(self._files.read(path))
                take(part)
                found[name] = Version.of(part["version"])
            except (ValueError, KeyError, TypeError, AttributeError) as e:
                why = f"{path} is damaged: {type(e).__name__}: {e}"
                raise CatalogError(f"{why}; remove it to take the master's copy") from e
        self.version = min(found.values()) if len(found) == 2 else Version()


def _place(key: Any) -> GroupQueue:
    first, topic_name, number = key
    return str(first), str(topic_name), int(number)


def _pack(version: Version, part: Json) -> bytes:
    kept = {"version": list(version), **part}
    return json.dumps({"crc": _crc(kept), "is": kept}).encode()


def _read(data: bytes) -> Json:
    """What was written. ValueError, KeyError, TypeError: it was not this."""
    table = json.loads(data)
    if isinstance(table, list):
        return {"version": Version(), "offsets": table}
    kept: Json = table["is"]
    if table["crc"] != _crc(kept):
        raise ValueError("its CRC does not match")
    return kept


def _crc(kept: Json) -> int:
    return crc32(json.dumps(kept).encode())
