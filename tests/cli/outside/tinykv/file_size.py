"""Forbid processes to write to files beyond a size. A write past it fails with EFBIG.

The limit is RLIMIT_FSIZE of the running process, see setrlimit(2) and prlimit(1).
"""

from harness.contracts import (
    ANY_BUT_INTEGRITY,
    BedFailed,
    FaultEffects,
    FaultPlugin,
    Observation,
    Param,
)


def fault(planned, context):
    nodes = context.resolve(planned.target, spare=context.claimed)
    return FileSize(context, nodes, planned.params["bytes"])


def draw(random, targets):
    return random.choice(targets or ("broker",)), {}


PLUGIN = FaultPlugin(
    fault=fault,
    effects=FaultEffects(may_break=ANY_BUT_INTEGRITY, spoils=True, excuses_exit=True),
    draw=draw,
    params={"bytes": Param(0, "the greatest size of a file", "bytes")},
    needs=frozenset({"commands"}),
)


class FileSize:
    """The limit, on some nodes."""

    def __init__(self, context, nodes, size_bytes):
        self.targets, self.bed, self.context = context.by_role(nodes), context.bed, context
        self.nodes, self.size_bytes = [node.name for node in nodes], size_bytes
        self.limited = {}

    async def __aenter__(self):
        self.context.claimed.update(self.nodes)
        for node in self.nodes:
            agent = self.bed.agents[node]
            state = await agent.state(self.bed.system.process(node))
            if state.state == "running":
                self.limited[node] = state.pid
                await self._limit(node, str(self.size_bytes))
        return self

    async def __aexit__(self, *exc):
        for node in self.limited:
            await self._limit(node, "unlimited")

    async def _limit(self, node, size):
        argv = ["prlimit", "--pid", str(self.limited[node]), f"--fsize={size}:"]
        result = await self.bed.agents[node].run(argv)
        if result.code and "No such process" not in result.err:
            raise BedFailed(f"{node}: prlimit: {result.err.strip()}")

    async def observe(self):
        return await self._observed(str(self.size_bytes), self.nodes)

    async def observe_healed(self):
        self.context.claimed.difference_update(self.nodes)
        return await self._observed("unlimited", list(self.limited))

    async def _observed(self, wanted, nodes):
        limits = {node: await self._current(node) for node in self.limited}
        right = sum(limits.get(node) in (wanted, "gone") for node in nodes)
        state = "installed" if right == len(nodes) else "partial" if right else "failed"
        return Observation(state, {"limits": limits}, f"files of at most {wanted} bytes")

    async def _current(self, node):
        path = f"/proc/{self.limited[node]}/limits"
        result = await self.bed.agents[node].run(["cat", path])
        line = next((one for one in result.out.splitlines() if one.startswith("Max file size")), "")
        return line.split()[3] if line else "gone"
