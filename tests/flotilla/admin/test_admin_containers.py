"""The operator's commands on a container, which is a real process with real brokers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from admin_lab import Ears
from loopback import free_port

from clusters.flotilla.admin import DONE, REFUSED, run_command

pytestmark = pytest.mark.bed


def broker(folder: Path, name: str, **changed: Any) -> Path:
    """Write the configuration of a broker; return its path."""
    table = {
        "role": "broker",
        "brokerName": name,
        "haMode": "switchless",
        "listenPort": free_port(),
        "haListenPort": free_port(),
        "storePath": str(folder / f"store-{name}"),
        "topics": {"t": 1},
        **changed,
    }
    path = folder / f"{name}.toml"
    path.write_text(tomli_w.dumps(table))
    return path


def test_an_operator_changes_a_container(raise_node: Any, tmp_path: Path) -> None:
    """Each command says what it did, or why it was refused. What was done survives kill -9."""
    nameserver = raise_node("ns", "nameserver")
    first, second = broker(tmp_path, "set-1"), broker(tmp_path, "set-2")
    settings = {"brokerConfigPaths": [str(first)], "namesrvAddr": [nameserver.address]}
    container = raise_node("c1", "container", **settings)

    async def admin(*words: str) -> tuple[int, str]:
        ears = Ears()
        code = await run_command((*words, "--node", container.address), ears)
        return code, "\n".join((*ears.output, *ears.complained))

    async def listed() -> set[str]:
        code, text = await admin("listBrokers")
        assert code == DONE
        return {name for name in ("set-1", "set-2", "set-3") if name in text.split()}

    async def scenario() -> None:
        assert await listed() == {"set-1"}
        code, said = await admin("addBroker", str(second))
        assert code == DONE
        assert said.startswith("flotilla:set-2:0 serves at 127.0.0.1:")
        assert await listed() == {"set-1", "set-2"}
        (tmp_path / "link").symlink_to("store-set-2")
        (tmp_path / "into").symlink_to("store-set-2/commitlog")
        stores = {
            "link": f"storePath {tmp_path}/store-set-2 is the store of flotilla:set-2:0",
            "into/x": "is in the other",
            "store-set-2": "is the store of flotilla:set-2:0",
            "x/../store-set-2": "is the store of flotilla:set-2:0",
            "store-set-2/commitlog": "is in the other",
            "set-1.toml/x": "did not start: storePath",
        }
        for words, why in (
            (("addBroker", str(second)), "flotilla:set-2:0 is in this container already"),
            *(
                (
                    (
                        "addBroker",
                        str(broker(tmp_path, f"new-{n}", storePath=f"{tmp_path}/{path}")),
                    ),
                    why,
                )
                for n, (path, why) in enumerate(stores.items())
            ),
            (
                ("addBroker", str(tmp_path / "none.toml")),
                "none.toml cannot be read",
            ),
            (
                ("removeBroker", "flotilla:set-3:0"),
                "flotilla:set-1:0, flotilla:set-2:0",
            ),
            (("removeBroker", "set-2"), "'set-2' is not CLUSTER:SET:ID"),
        ):
            code, said = await admin(*words)
            assert (code, why in said) == (REFUSED, True), said
        code, said = await admin("removeBroker", "flotilla:set-1:0")
        assert (code, said) == (
            DONE,
            f"flotilla:set-1:0 has left {container.address}; its store stays",
        )
        container.stop()
        container.start()
        assert await listed() == {"set-2"}

    asyncio.run(scenario())
