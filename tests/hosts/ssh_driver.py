"""A driver of SSH hosts that tests may stop and kill: `python ssh_driver.py RUN BED LEASE_S`.

It raises `a`, `b` and `c`, cuts b off from a, starts processes on a, one of them paused, and prints
"ready". After a line on standard input it asks a for the process, prints its observations as JSON,
and exits.
"""

import asyncio
import json
import signal
import sys
from pathlib import Path

from clusters.hosts.ssh import hosts as ssh
from harness.contracts import LinkRule, Node
from harness.errors import BedFailed
from harness.trial import Trial


async def drive(run: Path, bed: str) -> dict[str, str]:
    hosts = ssh.hosts(Trial(hosts="ssh", bed=json.loads(bed)), run)
    async with hosts.start_nodes([Node(name, "broker") for name in "abc"]) as (nodes, agents):
        await agents["b"].links([LinkRule(nodes[0].address)])
        await agents["a"].start("running", ["sh", "-c", "sleep 1001 & setsid sleep 1002 & wait"])
        await agents["a"].start("paused", ["sleep", "1003"])
        await agents["a"].signal("paused", signal.SIGSTOP)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        try:
            return {"paused": (await agents["a"].state("paused")).state}
        except BedFailed as e:
            return {"gone": str(e)}


def main(run: str, bed: str, lease_s: str) -> None:
    ssh.LEASE_S = float(lease_s)
    print(json.dumps(asyncio.run(drive(Path(run), bed))))


if __name__ == "__main__":
    main(*sys.argv[1:])
