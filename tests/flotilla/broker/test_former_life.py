"""A restarted broker ignores notices for its earlier process, and stops for a copy of itself."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from clusters.flotilla.config import loads
from clusters.flotilla.events import EventLog
from clusters.flotilla.net.controller_client import ControllerClient
from clusters.flotilla.net.wire import Json, Op, Status
from clusters.flotilla.steering.controller_link import ControllerLink, ReplicaInfo
from clusters.flotilla.world.ports import real

MINE = "127.0.0.1:10911"


class Played:
    """Controllers that gave the id 1, and ended the epoch 6 when its master registered again."""

    def __init__(self, elected: str = MINE) -> None:
        self.elected = elected
        self.link: ControllerLink | None = None

    async def ask(self, op: Op, fields: Json) -> Json:
        if op == Op.REGISTER_TO_CONTROLLER:
            return self.info(7, None)
        if op == Op.ELECT_MASTER:
            return self.info(8, 1, self.elected)
        return {"code": Status.SUCCESS, "brokerId": 1}

    def info(self, epoch: int, master: int | None, at: str = MINE) -> Json:
        addr = at if master else None
        told = {"code": Status.SUCCESS, "brokerName": "set-1", "masterEpoch": epoch}
        told |= {"masterId": master, "masterAddr": addr, "masterHaAddr": addr}
        return told | {"set": [1], "setEpoch": epoch, "members": {"1": {"addr": MINE}}}

    async def beat(self) -> None:
        """A notice that left before we registered arrives right after the answer."""
        assert self.link
        self.link.notice(self.info(6, 1))
        await asyncio.sleep(0)


class RecordedRoles:
    """Records the epochs in which the broker becomes master."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.elected = asyncio.Event()

    async def become_master(self, info: ReplicaInfo) -> None:
        self.epochs.append(info.epoch)
        if info.epoch == 8:
            self.elected.set()

    async def become_slave(self, info: ReplicaInfo) -> None:
        raise AssertionError("there is no other master")

    def install_set(self, info: ReplicaInfo) -> None: ...


class Exit:
    """Tells the test why a broker stops."""

    def __init__(self) -> None:
        self.why: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def fatal(self, why: str) -> NoReturn:
        self.why.set_result(why)
        raise asyncio.CancelledError


def epochs_as_master(folder: Path, elected: str = MINE) -> list[int]:
    """Return the epochs in which a starting broker becomes master. ValueError: it stopped."""
    text = 'role = "broker"\nnodeName = "b"\nlistenHost = "127.0.0.1"\nlistenPort = 10911\n'
    text += f'storePath = "{folder}/store"\nbrokerName = "set-1"\nhaListenPort = 10912\n'
    text += 'namesrvAddr = ["127.0.0.1:9876"]\ncontrollerAddr = ["127.0.0.1:9878"]\n'

    async def scenario() -> list[int]:
        stopped = Exit()
        ports, config = replace(real(1), exit=stopped), loads(text)
        played, roles = Played(elected), RecordedRoles()
        ports.files.makedirs(f"{folder}/store")
        events = EventLog("", "b", ports)
        controllers = cast(ControllerClient, played)
        link = ControllerLink(config, ports, controllers, roles, events, played.beat)
        played.link = link
        link.start()
        became_master = asyncio.ensure_future(roles.elected.wait())
        await asyncio.wait([became_master, stopped.why], timeout=10, return_when="FIRST_COMPLETED")
        became_master.cancel()
        link.close()
        if stopped.why.done():
            raise ValueError(stopped.why.result())
        return roles.epochs

    main: Coroutine[Any, Any, list[int]] = scenario()
    return asyncio.run(main)


def test_a_late_notice_makes_no_broker_master_of_an_earlier_epoch(tmp_path: Path) -> None:
    """The controllers ended that epoch when the broker registered again."""
    assert epochs_as_master(tmp_path) == [8]


def test_a_broker_whose_copy_is_elected_stops(tmp_path: Path) -> None:
    """Started with a copy of another broker's disk, it has the other's id and check code, but
    not its address. Two masters of one epoch would write different messages at one offset."""
    with pytest.raises(ValueError, match=r"broker 1: the id .* is also that of 10\.0\.0\.9:1"):
        epochs_as_master(tmp_path, "10.0.0.9:1")
