"""The real ports keep their promises."""

import asyncio
from pathlib import Path

from clusters.flotilla.world.ports import real


def test_replacing_a_file_twice_at_once_leaves_the_last(tmp_path: Path) -> None:
    """Overlapping calls for one path do not meet in its temporary file."""
    path = str(tmp_path / "offsets.json")

    async def overlap() -> None:
        files = real().files
        writes = (files.replace(path, b"%d" % n) for n in range(20))
        await asyncio.gather(*writes)

    asyncio.run(overlap())
    assert Path(path).read_bytes() == b"19"
    assert [p.name for p in tmp_path.iterdir()] == ["offsets.json"]
