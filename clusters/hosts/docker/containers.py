"""Nodes as containers: a network for the run, and two containers and a volume for each node.

*The holder* owns the node's network namespace and does nothing else. So the rules of a partition
outlive a restart of the node's container, which joins that namespace: it can never send a packet
past them. The holder has the node's folder as well, which can thus be copied after the node's
container was removed.

*The node* runs the agent, and what the agent starts. It has one privilege, NET_ADMIN, for the rules
of its own namespace, and cannot gain others, but for those that the system under test declares. Its
process 1 is the engine's init, which reaps orphans. IPv6 is off: links are cut by IPv4 address, and
there must be no other path.

*The network* is internal: the engine forwards nothing to other networks. The driver assigns all
addresses.
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

from clusters.hosts._agent import download
from clusters.hosts.docker import labels
from clusters.hosts.docker.exec_stream import ExecStream
from clusters.hosts.docker.image import PACKAGES, PYTHON
from clusters.hosts.docker.options import DockerOptions
from harness.errors import BadRequest, BedFailed

AGENT = f"{PACKAGES}/clusters/hosts/_agent/agent.py"
FOLDERS = "/seatrial"  # a node's own is below it
OUR_NETWORKS = IPv4Network("198.18.0.0/15")  # RFC 2544: for tests, routed nowhere
FIRST_NODE = 2  # the engine's bridge has address 1
NO_IPV6 = {f"net.ipv6.conf.{scope}.disable_ipv6": "1" for scope in ("all", "default")}
OVERLAPS = "overlap"


@dataclass(frozen=True)
class DockerNetwork:
    name: str
    subnet: IPv4Network

    def address(self, index: int) -> str:
        """Return the address of the node with this index."""
        return str(self.subnet[index + FIRST_NODE])


@dataclass(frozen=True)
class DockerProject:
    """What the nodes of a run are made with. `capabilities`: beside NET_ADMIN."""

    client: DockerClient
    run: Path
    image: str
    options: DockerOptions
    capabilities: Sequence[str] = ()


def folder(node: str) -> str:
    return f"{FOLDERS}/{node}"


def check_room(options: DockerOptions, nodes: int) -> None:
    """Raise BadRequest if the requested subnet has too few addresses."""
    subnet = options.subnet
    if subnet and subnet.num_addresses < nodes + FIRST_NODE + 1:
        raise BadRequest(f"bed.subnet is too small: {subnet} has no room for {nodes} nodes")


def create_network(yard: DockerProject, nodes: int) -> DockerNetwork:
    """Create the run's network, in the requested subnet or in the first free one."""
    asked = yard.options.subnet
    if asked:
        return _network(yard, asked)
    taken = subnets(yard.client)
    for subnet in OUR_NETWORKS.subnets(new_prefix=24 if nodes < 250 else 20):
        if not any(subnet.overlaps(other) for other in taken):
            try:
                return _network(yard, subnet)
            except APIError as e:  # another run took the subnet
                if OVERLAPS not in str(e.explanation):
                    raise
    raise BedFailed(
        f"every subnet of {OUR_NETWORKS} is taken on this engine; remove what earlier runs left "
        "with `seatrial heal --all`, or name another with --bed subnet=10.N.N.0/24"
    )


def subnets(client: DockerClient) -> list[IPv4Network]:
    """Return the subnets of the engine's networks, without those that the run will remove before it
    starts."""
    networks = client.api.networks()
    stay = [one for one in networks if not labels.is_abandoned(one.get("Labels") or {})]
    return list(_subnets(stay))


def start_node(yard: DockerProject, network: DockerNetwork, node: str, address: str) -> ExecStream:
    """Start the containers of one node; return the stream of its agent."""
    api = yard.client.api
    holder = _start_holder(yard, network, node, address)
    container = _container(yard, node, holder)
    api.start(container)
    command = [PYTHON, "-I", "-S", "-X", "frozen_modules=on", AGENT, address]
    started = api.exec_create(container, command, stdin=True, stdout=True, stderr=True)
    return ExecStream(api.exec_start(started["Id"], socket=True))


def download_folder(
    client: DockerClient, run: Path, node: str, holder: str, into: Path
) -> list[str]:
    """Copy the node's folder from a container of the run that has it; return descriptions of the
    files that were too large."""
    stream, _ = client.api.get_archive(
        labels.name(run, holder), folder(node), chunk_size=download.PORTION_BYTES
    )
    return download.unpack(download.IterableReader(stream), into)


# ----------------------------------------------------------------------------------- the parts


def _network(yard: DockerProject, subnet: IPv4Network) -> DockerNetwork:
    name = labels.name(yard.run, "network")
    pool = IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
    yard.client.api.create_network(
        name,
        driver="bridge",
        internal=True,
        ipam=IPAMConfig(pool_configs=[pool]),
        labels=labels.labels(yard.run, "network"),
        check_duplicate=True,
    )
    return DockerNetwork(name, subnet)


def _start_holder(yard: DockerProject, network: DockerNetwork, node: str, address: str) -> str:
    """Start the node's holder; return its id."""
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
    yard: DockerProject, network: DockerNetwork, node: str, address: str, sysctls: Mapping[str, str]
) -> str:
    api = yard.client.api
    place = api.create_endpoint_config(ipv4_address=address)
    return _create_container(
        yard,
        node,
        "holder",
        hostname=node,
        networking_config=api.create_networking_config({network.name: place}),
        host_config=api.create_host_config(
            network_mode=network.name, sysctls=dict(sysctls), **_common_config(yard, node)
        ),
    )


def _container(yard: DockerProject, node: str, holder: str) -> str:
    options = yard.options
    limits: dict[str, Any] = {}
    if options.memory:
        limits |= {"mem_limit": options.memory, "memswap_limit": options.memory}
    if options.cpus:
        limits |= {"nano_cpus": round(options.cpus * 1e9)}
    host_config = yard.client.api.create_host_config(
        network_mode=f"container:{holder}",
        cap_add=["NET_ADMIN", *yard.capabilities],
        **limits,
        **_common_config(yard, node),
    )
    return _create_container(yard, node, "node", host_config=host_config)


def _common_config(yard: DockerProject, node: str) -> dict[str, Any]:
    """Return the configuration of both containers of a node: an init, the node's folder, and no
    privilege."""
    return {
        "init": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "mounts": [_volume(yard, node)],
    }


def _volume(yard: DockerProject, node: str) -> Mount:
    """Return the volume, which the engine creates with the first container that uses it."""
    disk, driver = yard.options.disk, None
    if disk:
        limited = {"type": "tmpfs", "device": "tmpfs", "o": f"size={disk}"}
        driver = DriverConfig("local", limited)
    return Mount(
        target=folder(node),
        source=labels.name(yard.run, node),
        no_copy=True,
        labels=labels.labels(yard.run, "folder", node),
        driver_config=driver,
    )


def _create_container(yard: DockerProject, node: str, kind: str, **given: Any) -> str:
    """Create a container that sleeps, without the image's own entry point; return its id."""
    suffix = "" if kind == "node" else f"-{kind}"
    made = yard.client.api.create_container(
        yard.image,
        entrypoint=["sleep"],
        command=["infinity"],
        user="0",
        working_dir="/",
        healthcheck={"test": ["NONE"]},
        name=labels.name(yard.run, f"{node}{suffix}"),
        labels=labels.labels(yard.run, kind, node),
        **given,
    )
    return str(made["Id"])


def _subnets(networks: Sequence[dict[str, Any]]) -> Iterator[IPv4Network]:
    for network in networks:
        for pool in (network.get("IPAM") or {}).get("Config") or ():
            if ":" not in pool.get("Subnet", ":"):
                yield IPv4Network(pool["Subnet"], strict=False)
