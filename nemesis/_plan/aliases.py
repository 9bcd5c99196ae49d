"""The fault names of OpenChaos and Jepsen.

In OpenChaos `minor` is fewer than half of the nodes and `major` more than half; `suspend` is
SIGSTOP; a loss is 80 % of what a node receives; partitions spare the clients; `noop` is not a
fault. In Jepsen `partition-one` and similar names divide the servers, `packet` delays, `bitflip`
and `truncate` damage files, and the target says which nodes a fault hits: `primaries`,
`minority-third`.

Differences: a partition cuts both ways (OpenChaos drops only what one side receives), `bridge` and
the ring divide all servers, not exactly five, and healing a partition removes only its own rules.
Nodes are brokers, unless the trial names targets; `fixed-` requires that. A `strobe`d clock runs at
twice its speed and is set back when it is healed; Jepsen's jumps back and forth many times a
second. A corrupted packet fails its checksum, so it is a lost one. There is no counterpart of
`packet-duplicate`, which TCP hides, and of copying and rolling back parts of files
(`copy-file-chunks`, `snapshot-file-chunks`). Names that OpenChaos accepts but does not implement
(`minor-cpu-high`) work here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from harness import registry


@dataclass(frozen=True)
class Alias:
    """A fault kind with fixed target and parameters; without a target, the trial's is used.

    settled  False for a kind by its own name, whose module draws target and parameters
    kind     '' if the name stands for no fault
    """

    kind: str
    target: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    settled: bool = True


_VICTIMS = {
    "minor": "minority broker",
    "major": "majority broker",
    "random": "random broker",
    "fixed": "",
    "leader": "master",
}
_OTHERS = {who: target for who, target in _VICTIMS.items() if who != "leader"}
_LATE = {"delay_s": 0.1, "jitter_s": 0.05}  # as OpenChaos has it


def _each(victims: Mapping[str, str], name: str, kind: str, **params: Any) -> dict[str, Alias]:
    return {f"{who}-{name}": Alias(kind, target, params) for who, target in victims.items()}


def _divided(shape: str) -> Alias:
    return Alias("partition", "server", {"shape": shape})


OPENCHAOS: Mapping[str, Alias] = {
    "noop": Alias(""),
    **_each(_VICTIMS, "kill", "kill"),
    **_each(_VICTIMS, "suspend", "pause"),
    "random-partition": Alias("partition", "all broker", {"shape": "halves"}),
    "fixed-partition": Alias("partition", "", {"shape": "isolate"}),
    "leader-partition": Alias("partition", "master", {"shape": "isolate"}),
    "partition-majorities-ring": _divided("ring"),
    "bridge": _divided("bridge"),
    **_each(_OTHERS, "loss", "loss", probability=0.8),
    **_each(_OTHERS, "delay", "delay", **_LATE),
    **_each(_OTHERS, "cpu-high", "starve-cpu"),
    **_each(_OTHERS, "mem-high", "starve-memory"),
    **_each(_OTHERS, "disk-error", "fsync", how="fail"),
    **_each(_OTHERS, "io-hang", "fsync", how="hang"),
}

_SLOW = Alias("delay", "one server", {"delay_s": 0.05, "jitter_s": 0.01})
_FLAKY = Alias("loss", "one server", {"probability": 0.2})
_FAST = Alias("clock", "one server", {"skew_s": 0.0, "rate": 2.0})

JEPSEN: Mapping[str, Alias] = {
    "partition-halves": _divided("halves"),
    "partition-random-halves": _divided("halves"),
    "partition-majority": _divided("majority"),
    "partition-one": _divided("one"),
    "partition-random-node": _divided("one"),
    "partition-minority-third": Alias("partition", "minority-third", {"shape": "isolate"}),
    "partition-primaries": Alias("partition", "master", {"shape": "isolate"}),
    "primaries": Alias("partition", "master", {"shape": "isolate"}),
    "majorities-ring": _divided("ring"),
    "hammer-time": Alias("pause", "one server"),
    "packet": _SLOW,
    "packet-delay": _SLOW,
    "slow": _SLOW,
    "packet-loss": _FLAKY,
    "flaky": _FLAKY,
    "packet-corrupt": _FLAKY,
    "packet-reorder": Alias("delay", "one server", {**_SLOW.params, "reorder": 0.2}),
    "packet-rate": Alias("bandwidth", "one server", {"bytes_per_s": 125_000.0}),
    "clock-scrambler": Alias("clock", "one server"),
    "bump": Alias("clock", "one server"),
    "bump-clock": Alias("clock", "one server"),
    "strobe": _FAST,
    "strobe-clock": _FAST,
    "faketime": Alias("clock", "one server", {"skew_s": 0.0, "rate": 1.1}),
    "bitflip": Alias("corrupt", "one slave"),
    "bitflip-file-chunks": Alias("corrupt", "one slave"),
    "truncate": Alias("corrupt", "one slave", {"how": "truncate"}),
    "truncate-file": Alias("corrupt", "one slave", {"how": "truncate"}),
    "file-corruption": Alias("corrupt", "one slave"),
    "lazyfs": Alias("unsynced", "one server"),
    "lose-unfsynced-writes": Alias("unsynced", "one server", {"keeps": "nothing"}),
    "crash": Alias("crash", "one client"),
    "crash-clients": Alias("crash", "one client"),
}

ALIASES: Mapping[str, Alias] = {**OPENCHAOS, **JEPSEN}


@cache
def aliases() -> Mapping[str, Alias]:
    """Return the aliases whose kind is installed and whose name is not itself a kind."""
    kinds = registry.names("fault")
    return {
        name: alias
        for name, alias in ALIASES.items()
        if name not in kinds and (not alias.kind or alias.kind in kinds)
    }
