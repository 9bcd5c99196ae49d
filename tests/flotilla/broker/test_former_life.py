"""A broker that starts again is nobody's master by news of its former life, or of its double."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest

from clusters.flotilla.broker.controller_link import Replicas, Standing
from clusters.flotilla.config import loads
from clusters.flotilla.events import EventLog
from clusters.flotilla.net.controller_client import Controllers
from clusters.flotilla.net.wire import Json, Op, Status
from clusters.flotilla.world.ports import real

MINE = "127.0.0.1:10911"


class Played:
    """Controllers that gave the id 1, and ended the epoch 6 when its master registered again."""

    def __init__(self, elected: str = MINE) -> None:
        self.elected = elected
        self.replicas: Replicas | None = None

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
        assert self.replicas
        self.replicas.notice(self.info(6, 1))
        await asyncio.sleep(0)


class Roles:
    """What the broker would do."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.elected = asyncio.Event()

    async def reign(self, standing: Standing) -> None:
        self.epochs.append(standing.epoch)
        if standing.epoch == 8:
            self.elected.set()

    async def follow(self, standing: Standing) -> None:
        raise AssertionError("there is nobody to follow")

    def install_set(self, standing: Standing) -> None: ...


class Exit:
    """Tells the test why a broker stops."""

    def __init__(self) -> None:
        self.why: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def fatal(self, why: str) -> NoReturn:
        self.why.set_result(why)
        raise asyncio.CancelledError


def reigns(folder: Path, elected: str = MINE) -> list[int]:
    """The epochs in which a broker that starts takes itself for master. ValueError: it stopped."""
    text = 'role = "broker"\nnodeName = "b"\nlistenHost = "127.0.0.1"\nlistenPort = 10911\n'
    text += f'storePath = "{folder}/store"\nbrokerName = "set-1"\nhaListenPort = 10912\n'
    text += 'namesrvAddr = ["127.0.0.1:9876"]\ncontrollerAddr = ["127.0.0.1:9878"]\n'

    async def life() -> list[int]:
        stopped = Exit()
        ports, config = replace(real(1), exit=stopped), loads(text)
        played, roles = Played(elected), Roles()
        ports.files.makedirs(f"{folder}/store")
        events = EventLog("", "b", ports)
        controllers = cast(Controllers, played)
        replicas = Replicas(config, ports, controllers, roles, events, played.beat)
        played.replicas = replicas
        replicas.start()
        crowned = asyncio.ensure_future(roles.elected.wait())
        await asyncio.wait([crowned, stopped.why], timeout=10, return_when="FIRST_COMPLETED")
        crowned.cancel()
        replicas.close()
        if stopped.why.done():
            raise ValueError(stopped.why.result())
        return roles.epochs

    main: Coroutine[Any, Any, list[int]] = life()
    return asyncio.run(main)


def test_a_late_notice_makes_nobody_master_of_his_former_epoch(tmp_path: Path) -> None:
    """The controllers ended that epoch when they heard of the new life."""
    assert reigns(tmp_path) == [8]


def test_a_broker_whose_double_is_elected_stops(tmp_path: Path) -> None:
    """Spec 5.3: started with a copy of another's disk it has the other's id and check code, but
    not its address. Two masters of one epoch would write different messages at one offset."""
    with pytest.raises(ValueError, match=r"broker 1: the id .* is also that of 10\.0\.0\.9:1"):
        reigns(tmp_path, "10.0.0.9:1")
