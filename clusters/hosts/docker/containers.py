"""Nodes as containers: one network for the run, and two containers and a volume for each node.

*The holder* owns the node's network namespace and does nothing else. So the rules of a partition
outlive a restart of the node's own container, which joins that namespace: there is no moment at
which it could send its first packet past them. It holds the node's folder as well, which can thus
be brought home when somebody removed the node.

*The node* runs the agent, and what the agent starts. It has one privilege, NET_ADMIN, for the rules
of its own namespace, and cannot gain others. Its process 1 is the engine's init, which buries
orphans. IPv6 is off: links are cut by IPv4 address, and there must be no other way round.

*The network* is internal: the engine lets nothing through to other networks. Addresses are given by
us, so nobody is asked for them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from docker import DockerClient
from docker.errors import APIError
from docker.types import IPAMConfig, IPAMPool, Mount
from docker.types.services import DriverConfig

from clusters.hosts._agent import download as _homecoming
from clusters.hosts.docker import labels as _docker_marks
from clusters.hosts.docker.exec_stream import ExecStream
from clusters.hosts.docker.image import PACKAGES, PYTHON
from clusters.hosts.docker.options import Options
from harness.errors import BadRequest, BedFailed

AGENT = f"{PACKAGES}/clusters/hosts/_agent/agent.py"
FOLDERS = "/seatrial"  # a node's own is below it
OUR_NETWORKS = IPv4Network("198.18.0.0/15")  # RFC 2544: for tests, routed nowhere
FIRST_NODE = 2  # the engine's bridge has the address before
NO_IPV6 = {f"net.ipv6.conf.{scope}.disable_ipv6": "1" for scope in ("all", "default")}
TAKEN = "overlap"


@dataclass(frozen=True)
class Network:
    name: str
    subnet: IPv4Network

    def address(self, index: int) -> str:
        """The address of the node at this place in the list."""
        return str(self.subnet[index + FIRST_NODE])


@dataclass(frozen=True)
class Yard:
    """What all nodes of a run are made with."""

    client: DockerClient
    run: Path
    image: str
    options: Options


def folder(node: str) -> str:
    return f"{FOLDERS}/{node}"


def check_room(options: Options, nodes: int) -> None:
    """BadRequest when the subnet that was asked for has too few addresses."""
    asked = options.subnet
    if asked and asked.num_addresses < nodes + FIRST_NODE + 1:
        raise BadRequest(f"bed.subnet is too small: {asked} has no room for {nodes} nodes")


def joined(yard: Yard, nodes: int) -> Network:
    """The run's network: in the subnet that was asked for, else in the first that is free."""
    asked = yard.options.subnet
    if asked:
        return _network(yard, asked)
    taken = subnets(yard.client)
    for subnet in OUR_NETWORKS.subnets(new_prefix=24 if nodes < 250 else 20):
        if not any(subnet.overlaps(other) for other in taken):
            try:
                return _network(yard, subnet)
            except APIError as e:  # another run was quicker
                if TAKEN not in str(e.explanation):
                    raise
    raise BedFailed(
        f"every subnet of {OUR_NETWORKS} is taken on this engine; remove what earlier runs left "
        "with `seatrial heal --all`, or name another with --bed subnet=10.N.N.0/24"
    )


def subnets(client: DockerClient) -> list[IPv4Network]:
    """What the engine's networks use already, and will still use when a run begins."""
    networks = client.api.networks()
    stay = [one for one in networks if not _docker_marks.will_go(one.get("Labels") or {})]
    return list(_subnets(stay))


def raised(yard: Yard, network: Network, node: str, address: str) -> ExecStream:
    """Make one node; the stream of its agent."""
    api = yard.client.api
    holder = _holding(yard, network, node, address)
    container = _container(yard, node, holder)
    api.start(container)
    command = [PYTHON, "-I", "-S", "-X", "frozen_modules=on", AGENT, address]
    started = api.exec_create(container, command, stdin=True, stdout=True, stderr=True)
    return ExecStream(api.exec_start(started["Id"], socket=True))


def brought_home(client: DockerClient, run: Path, node: str, into: Path) -> list[str]:
    """Copy the node's folder; what was too large and left out."""
    holder = _docker_marks.name(run, f"{node}-holder")
    stream, _ = client.api.get_archive(holder, folder(node), chunk_size=_homecoming.PORTION_BYTES)
    return _homecoming.unpack(_homecoming.Portions(stream), into)


# ----------------------------------------------------------------------------------- the parts


def _network(yard: Yard, subnet: IPv4Network) -> Network:
    name = _docker_marks.name(yard.run, "network")
    pool = IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
    yard.client.api.create_network(
        name,
        driver="bridge",
        internal=True,
        ipam=IPAMConfig(pool_configs=[pool]),
        labels=_docker_marks.labels(yard.run, "network"),
        check_duplicate=True,
    )
    return Network(name, subnet)


def _holding(yard: Yard, network: Network, node: str, address: str) -> str:
    """The node's holder, started; its id."""
    api = yard.client.api
    holder = _holder(yard, network, node, address, NO_IPV6)
    try:
        api.start(holder)
    except APIError as e:
        if "net/ipv6" not in str(e.explanation):
            raise
        api.remove_container(holder, force=True)
        holder = _holder(yard, network, node, address, {})  # a kernel without IPv6
        api.start(holder)
    return holder


def _holder(
    yard: Yard, network: Network, node: str, address: str, sysctls: Mapping[str, str]
) -> str:
    api = yard.client.api
    place = api.create_endpoint_config(ipv4_address=address)
    return _created(
        yard,
        node,
        "holder",
        hostname=node,
        networking_config=api.create_networking_config({network.name: place}),
        host_config=api.create_host_config(
            network_mode=network.name, sysctls=dict(sysctls), **_everywhere(yard, node)
        ),
    )


def _container(yard: Yard, node: str, holder: str) -> str:
    options = yard.options
    limits: dict[str, Any] = {}
    if options.memory:
        limits |= {"mem_limit": options.memory, "memswap_limit": options.memory}
    if options.cpus:
        limits |= {"nano_cpus": round(options.cpus * 1e9)}
    host_config = yard.client.api.create_host_config(
        network_mode=f"container:{holder}",
        cap_add=["NET_ADMIN"],
        **limits,
        **_everywhere(yard, node),
    )
    return _created(yard, node, "node", host_config=host_config)


def _everywhere(yard: Yard, node: str) -> dict[str, Any]:
    """What both containers of a node have: an init, the node's folder, and no privilege."""
    return {
        "init": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "mounts": [_volume(yard, node)],
    }


def _volume(yard: Yard, node: str) -> Mount:
    """The engine makes it with the first container that wants it."""
    disk, driver = yard.options.disk, None
    if disk:
        limited = {"type": "tmpfs", "device": "tmpfs", "o": f"size={disk}"}
        driver = DriverConfig("local", limited)
    return Mount(
        target=folder(node),
        source=_docker_marks.name(yard.run, node),
        no_copy=True,
        labels=_docker_marks.labels(yard.run, "folder", node),
        driver_config=driver,
    )


def _created(yard: Yard, node: str, kind: str, **given: Any) -> str:
    """A container that sleeps; its id. Nothing the image was made for begins by itself."""
    suffix = "" if kind == "node" else f"-{kind}"
    made = yard.client.api.create_container(
        yard.image,
        entrypoint=["sleep"],
        command=["infinity"],
        user="0",
        working_dir="/",
        healthcheck={"test": ["NONE"]},
        name=_docker_marks.name(yard.run, f"{node}{suffix}"),
        labels=_docker_marks.labels(yard.run, kind, node),
        **given,
    )
    return str(made["Id"])


def _subnets(networks: Sequence[dict[str, Any]]) -> Iterator[IPv4Network]:
    for network in networks:
        for pool in (network.get("IPAM") or {}).get("Config") or ():
            if ":" not in pool.get("Subnet", ":"):
                yield IPv4Network(pool["Subnet"], strict=False)
