"""A broker's metadata stays small enough to be copied to a slave in one frame."""

from pathlib import Path

import pytest
from simulated_fleet import BROKER_SET, TOPIC, Fleet, Sailor

from clusters.flotilla.broker import catalog
from clusters.flotilla.broker.catalog import Catalog, MetadataChange, Version
from clusters.flotilla.client.calls import CallRefused
from clusters.flotilla.net.wire import MAX_FRAME, Json, Op, Status, to_json
from clusters.flotilla.world.ports import real


def test_a_catalog_that_is_full_takes_changes_of_what_it_has_alone(tmp_path: Path) -> None:
    """New rows are refused before it fills half a frame; groups go on, and room comes back."""
    kept, number = Catalog(str(tmp_path), real(1).files, {"t": 4}), 0

    def row(of: int) -> list[MetadataChange]:
        return [catalog.group(f"group-{of}", [f"{of:0>120}-{n}" for n in range(1000)])]

    while kept.has_room(row(number)):
        kept.apply(row(number), Version(1, number))
        number += 1
    assert MAX_FRAME // 2 - 200_000 < len(to_json(kept.copy())) <= MAX_FRAME // 2
    assert kept.has_room(row(number - 1))
    kept.apply([catalog.group("group-0", [])], Version(1, number))
    assert kept.has_room(row(number))


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        (Op.GROUP_HEARTBEAT, {"group": "g", "client": "c", "topics": ["t" * 3_500_000]}),
        (Op.GROUP_HEARTBEAT, {"group": "g", "client": "c", "topics": ["t"] * 1001}),
        (Op.GROUP_HEARTBEAT, {"group": "g" * 256, "client": "c", "topics": ["t"]}),
        (Op.OFFSET_COMMIT, {"group": "", "topic": TOPIC, "queueId": 0, "offset": 0}),
        (Op.OFFSET_RESET, {"group": "g" * 256, "topic": TOPIC, "queueId": 0, "offset": 0}),
    ],
    ids=["long topic", "many topics", "long group", "no name", "long group's offset"],
)
def test_names_without_measure_are_refused(op: Op, fields: Json) -> None:
    """One such group would end the copying of everything that is changed later."""

    async def scenario(sailor: Sailor) -> None:
        master = (await sailor.healthy()).masters[BROKER_SET]
        assert master
        with pytest.raises(CallRefused) as refused:
            await sailor.client.calls.ask(sailor.fleet.address(master), op, fields)
        assert refused.value.status is Status.MESSAGE_ILLEGAL

    Fleet(5, "allack-min2").sail(scenario)
