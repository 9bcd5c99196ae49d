"""What a broker knows besides its log: topics, consumer groups, and how far each group has come.

One value with one DataVersion (the original's: stateVersion, which is the master's epoch, and a
counter). A master numbers its changes; a slave holds the master's catalog as of some version, and
takes a newer one as a whole or as the changes in between (spec 10.4). It never takes one of an
older epoch, and it never works off a copy row by row: the original deletes every topic before it
adds the master's, and in between the slave has none (apache/rocketmq#9804).

On disk are `topics.json` (topics and groups) and `consumerOffset.json`, each replaced as a whole,
with a CRC and the version that it was written at. What is loaded has the older of the two: a lower
bound, and whoever takes the changes since then once more ends where he was. The first edition kept
offsets only, as bare rows: they are taken, of no version.

A commit never takes a group back, a reset does. An offset that points behind the end of its queue
belongs to a fork that was cut: at a promotion it is lowered to the end, or the group would skip
what is written there next (apache/rocketmq#4771). Offsets of a topic go when the topic goes. A
topic that is made anew goes on where the old one ended: no offset is used twice. Topics never get
fewer queues, whatever was asked for before what is under way was known.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from ..net.wire import MAX_FRAME, Json, to_json
from ..world.ports import Files, no_room

TOPICS_FILE, OFFSETS_FILE = "topics.json", "consumerOffset.json"
Place = tuple[str, str, int]  # group, topic, queue
MOST_BYTES = MAX_FRAME // 2  # of all of it: a slave is given it in one frame


class Version(NamedTuple):
    """The original's DataVersion: which epoch's master numbered the change, and its number."""

    epoch: int = 0
    counter: int = 0

    def next(self) -> "Version":
        return Version(self.epoch, self.counter + 1)

    @classmethod
    def of(cls, raw: Any) -> "Version":
        epoch, counter = raw
        return cls(int(epoch), int(counter))


class Change(NamedTuple):
    """One change, as it travels: a topic (value: queues, None: gone), a group (value: its topics),
    a commit or a reset of a group's offset."""

    what: str
    key: Any
    value: Any


def topic(name: str, queues: int | None) -> Change:
    return Change("topic", name, queues)


def group(name: str, topics: Iterable[str]) -> Change:
    return Change("group", name, sorted(topics))


def commit(place: Place, offset: int) -> Change:
    return Change("commit", list(place), offset)


def reset(place: Place, offset: int) -> Change:
    return Change("reset", list(place), offset)


def change_is_held(offered: Version, held: Sequence[Version]) -> bool:
    """Strict metadata: does every member hold the change, so that it may be answered?"""
    return all(version >= offered for version in held)


def may_adopt(ours: Version, theirs: Version) -> bool:
    """May a slave take this master's catalog? A field of `rules.Rules`."""
    return theirs > ours


def commit_moves(offset: int, known: int) -> bool:
    """Does a commit of `offset` move a group that stands at `known`? Forwards only."""
    return offset > known


class Damaged(ValueError):
    """A file of the catalog can not be read; the text says which and why."""


class Catalog:
    """A broker's metadata; `topics` are looked up for every send."""

    def __init__(
        self,
        store: str,
        files: Files,
        made_at_start: Mapping[str, int],
        commit_moves: Callable[[int, int], bool] = commit_moves,
    ) -> None:
        self.version = Version()
        self.topics: dict[str, int] = dict(made_at_start)
        self.groups: dict[str, tuple[str, ...]] = {}
        self._store, self._files = store, files
        self._commit_moves = commit_moves
        self._offsets: dict[Place, int] = {}
        self._unsaved: set[str] = set()
        self._saving = asyncio.Lock()
        self._bytes = MOST_BYTES  # as it travels, at most
        self._load()

    def offset(self, place: Place) -> int:
        """-1 when the group has none there."""
        return self._offsets.get(place, -1)

    @property
    def dirty(self) -> bool:
        return bool(self._unsaved)

    # changing it

    def apply(self, changes: Iterable[Change], version: Version) -> None:
        """Take changes; the catalog is then of this version."""
        self.version = version
        for change in changes:
            self._bytes += self._growth(change)
            if change.what == "topic":
                self._set_topic(str(change.key), change.value)
            elif change.what == "group":
                self.groups[str(change.key)] = tuple(change.value)
                self._unsaved.add(TOPICS_FILE)
            else:
                self._set_offset(change)

    def _set_topic(self, name: str, queues: int | None) -> None:
        self._unsaved.add(TOPICS_FILE)
        if queues is not None:
            self.topics[name] = max(int(queues), self.topics.get(name, 0))
            return
        self.topics.pop(name, None)
        for place in [p for p in self._offsets if p[1] == name]:
            del self._offsets[place]
            self._unsaved.add(OFFSETS_FILE)

    def _set_offset(self, change: Change) -> None:
        group_name, topic_name, queue = change.key
        place, offset = (str(group_name), str(topic_name), int(queue)), int(change.value)
        if place[1] not in self.topics:
            return  # it was deleted meanwhile
        if change.what == "reset" or self._commit_moves(offset, self._offsets.get(place, -1)):
            self._offsets[place] = offset
            self._unsaved.add(OFFSETS_FILE)

    def has_room(self, changes: Iterable[Change]) -> bool:
        """May it grow by these? What is there already may change for ever."""
        growth = sum(self._growth(change) for change in changes)
        if growth and self._bytes + growth > MOST_BYTES:
            self._bytes = len(to_json(self.copy()))
        return not growth or self._bytes + growth <= MOST_BYTES

    def _growth(self, change: Change) -> int:
        """Bytes that it takes more, about."""
        if change.what == "topic":
            is_new = change.value is not None and change.key not in self.topics
        elif change.what == "group":
            is_new = self.groups.get(change.key) != tuple(change.value)
        else:
            is_new = tuple(change.key) not in self._offsets
        return len(to_json({"": change})) if is_new else 0

    def clamp(self, end_of: Callable[[str, int], int]) -> list[tuple[str, str, int, int]]:
        """Lower what points behind its queue's end; the rows that were lowered, as they were."""
        lowered = []
        for place, offset in self._offsets.items():
            end = end_of(place[1], place[2])
            if offset > end:
                lowered.append((*place, offset))
                self._offsets[place] = end
                self._unsaved.add(OFFSETS_FILE)
        return lowered

    # copying it

    def copy(self) -> Json:
        """All of it, as it travels."""
        return {"version": list(self.version), **self._topics_part(), **self._offsets_part()}

    def adopt(self, copy: Json) -> None:
        """Become what this copy says, at once."""
        self._bytes = MOST_BYTES
        self.version = Version.of(copy["version"])
        self._take_topics(copy)
        self._take_offsets(copy)
        self._unsaved |= {TOPICS_FILE, OFFSETS_FILE}

    def _topics_part(self) -> Json:
        groups = {name: list(topics) for name, topics in sorted(self.groups.items())}
        return {"topics": dict(sorted(self.topics.items())), "groups": groups}

    def _offsets_part(self) -> Json:
        return {"offsets": [[*place, offset] for place, offset in sorted(self._offsets.items())]}

    def _take_topics(self, part: Json) -> None:
        topics = {str(name): int(queues) for name, queues in part["topics"].items()}
        groups = {str(name): tuple(map(str, of)) for name, of in part["groups"].items()}
        self.topics, self.groups = topics, groups

    def _take_offsets(self, part: Json) -> None:
        rows = part["offsets"]
        self._offsets = {(str(g), str(t), int(q)): int(offset) for g, t, q, offset in rows}

    # keeping it

    async def save(self) -> bool:
        """Is what has changed on the disk now? False: there is no room, try again."""
        async with self._saving:
            try:
                await self._save()
            except OSError as e:
                if not no_room(e):
                    raise
                return False
            return True

    async def _save(self) -> None:
        unsaved, self._unsaved = self._unsaved, set()
        try:
            for name in sorted(unsaved):
                part = self._topics_part() if name == TOPICS_FILE else self._offsets_part()
                await self._files.replace(f"{self._store}/{name}", _written(self.version, part))
        except OSError:
            self._unsaved |= unsaved
            raise

    def _load(self) -> None:
        found = {}
        for name, take in ((TOPICS_FILE, self._take_topics), (OFFSETS_FILE, self._take_offsets)):
            path = f"{self._store}/{name}"
            if not self._files.exists(path):
                continue
            try:
                part = _read(self._files.read(path))
                take(part)
                found[name] = Version.of(part["version"])
            except (ValueError, KeyError, TypeError, AttributeError) as e:
                why = f"{path} is damaged: {type(e).__name__}: {e}"
                raise Damaged(f"{why}; remove it to take the master's copy") from e
        self.version = min(found.values()) if len(found) == 2 else Version()


def _written(version: Version, part: Json) -> bytes:
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
