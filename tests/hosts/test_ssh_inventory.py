"""The inventory is read strictly, completed from ~/.ssh/config, and assigned: one node per host."""

import itertools
from collections.abc import Callable
from pathlib import Path

import paramiko
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.hosts.ssh.config import route, with_resolved_addresses
from clusters.hosts.ssh.inventory import Inventory, InventoryHost, assign, load, with_addresses
from harness.contracts import Node
from harness.errors import BadRequest

Written = Callable[[str], Path]
TWO = """
[defaults]
user = "ops"
zone = "a"

[[host]]
host = "db1.example"
address = "10.0.0.11"
port = 2222
jump = "ops@bastion:22"
roles = ["broker"]

[[host]]
host = "10.0.0.12"
zone = "b"
"""


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(text: str) -> Path:
        path = tmp_path / "inventory.toml"
        path.write_text(text)
        return path

    return write


def test_a_host_is_what_it_says_over_the_defaults(written: Written) -> None:
    """Own keys take precedence over [defaults]; an address as the name is the address; a jump is a
    list."""
    one, two = load(written(TWO)).hosts
    assert one == InventoryHost(
        "db1.example",
        "10.0.0.11",
        user="ops",
        port=2222,
        jump=("ops@bastion:22",),
        zone="a",
        roles=("broker",),
    )
    assert two == InventoryHost("10.0.0.12", "10.0.0.12", user="ops", zone="b")
    assert (str(one), str(two)) == ("db1.example (10.0.0.11)", "10.0.0.12")


WRONG = {
    'user = "x"\n': " line 1: unknown table 'user'",
    "[defaults]\n": " names no host; add [[host]]",
    "host = 1\n": " line 1: each host must be a table of its own: [[host]]",
    "[host]\nhost = 'a'\n": " line 1: each host must be a table of its own: [[host]]",
    "[[host]]\nport = 22\n": " line 1: host number 1 has no name; add host",
    "[[host]]\nhost = 'a'\nprot = 22\n": " line 3: unknown key 'prot'; known: host, address",
    "[[host]]\nhost = 'a'\nport = '22'\n": " line 3: port must be a port from 1 to 65535, not '22'",
    "[[host]]\nhost = 'a'\nport = true\n": " line 3: port must be a port",
    "[[host]]\nhost = 'a'\nport = 65536\n": " line 3: port must be a port",
    "[[host]]\nhost = 'a'\nuser = 7\n": " line 3: user must be a string that says something, not 7",
    "[[host]]\nhost = 'a'\nuser = ''\n": " line 3: user must be a string that says something",
    "[[host]]\nhost = 'a'\nroles = 'x'\n": " line 3: roles must be a list of words, not 'x'",
    "[[host]]\nhost = 'a'\njump = 7\n": ' line 3: jump must be like "user@host:22"',
    "[[host]]\nhost = 'a'\nfolder = 'x'\n": " line 3: folder must be an absolute path, not 'x'",
    "[[host]]\nhost = '-oProxyCommand=x'\n": " line 2: host must be one word",
    "[[host]]\nhost = 'a'\naddress = '::1'\n": " line 3: address must be an IPv4 address",
    "[[host]]\nhost = 'a'\naddress = '10.0.0.256'\n": " line 3: address must be an IPv4 address",
    "[[host]]\nhost = 'a'\n[[host]]\nhost = 'a'\n": " line 4: host 'a' is there twice",
    "[[host]]\nhost = 'a'\naddress = '10.0.0.1'\n[[host]]\nhost = '10.0.0.1'\n": (
        " line 4: address '10.0.0.1' is there twice"
    ),
    "[defaults]\nhost = 'a'\n[[host]]\nhost = 'b'\n": " line 2: host is each host's own",
    "[defaults]\nport = 0\n[[host]]\nhost = 'b'\n": " line 2: port must be a port",
    "[[host]]\nhost = \n": " is not valid TOML: Invalid value (at line 2",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_said_with_its_line_and_key(written: Written, text: str) -> None:
    """One sentence: file, line, key, and the expected value."""
    path = written(text)
    with pytest.raises(BadRequest) as refused:
        load(path)
    assert str(refused.value).startswith(f"{path}{WRONG[text]}")


def test_a_file_that_is_none_is_said(tmp_path: Path) -> None:
    """Missing, a folder, not text: each is one sentence."""
    with pytest.raises(BadRequest, match="does not exist; write it"):
        load(tmp_path / "nowhere.toml")
    with pytest.raises(BadRequest, match="cannot be read: Is a directory"):
        load(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadRequest, match="is not text in UTF-8"):
        load(tmp_path / "bytes.toml")


# -------------------------------------------------------------------------------- sharing them out


ROLES = ("broker", "controller", "client")
some_hosts = st.lists(st.sets(st.sampled_from(ROLES)), min_size=1, max_size=5)
some_nodes = st.lists(st.sampled_from(ROLES), min_size=1, max_size=5)


@given(some_hosts, some_nodes)
def test_every_node_gets_a_host_whenever_that_is_possible(
    allowed: list[set[str]], roles: list[str]
) -> None:
    """Compared with all permutations: one node per host, roles respected; else the right
    numbers."""
    hosts = tuple(
        InventoryHost(f"h{at}", roles=tuple(sorted(own))) for at, own in enumerate(allowed)
    )
    nodes = [Node(f"n{at}", role) for at, role in enumerate(roles)]
    possible = any(
        all(host.takes(node.role) for node, host in zip(nodes, chosen, strict=True))
        for chosen in itertools.permutations(hosts, len(nodes))
    )
    inventory = Inventory("i.toml", hosts)
    if not possible:
        with pytest.raises(BadRequest, match=r"^this trial has \d nodes"):
            assign(inventory, nodes)
        return
    given_out = assign(inventory, nodes)
    assert list(given_out) == [node.name for node in nodes]
    assert len(set(given_out.values())) == len(nodes)
    assert all(given_out[node.name].takes(node.role) for node in nodes)
    assert assign(inventory, nodes) == given_out


def test_too_few_hosts_are_told_in_both_numbers() -> None:
    """How many nodes compete, and for how many hosts."""
    brokers = [Node(f"broker-{at}", "broker") for at in range(3)]
    with pytest.raises(BadRequest, match=r"has 3 nodes, one host each, and i\.toml lists 2 hosts"):
        assign(Inventory("i.toml", (InventoryHost("a"), InventoryHost("b"))), brokers)
    two = (
        InventoryHost("a", roles=("broker",)),
        InventoryHost("b"),
        InventoryHost("c", roles=("client",)),
    )
    with pytest.raises(BadRequest, match=r"has 3 nodes of role broker, and i\.toml has 2 hosts"):
        assign(Inventory("i.toml", two), brokers)


def test_a_host_that_asks_for_a_role_gets_it_first() -> None:
    """Hosts for any role are kept for other nodes."""
    hosts = (InventoryHost("any"), InventoryHost("for-clients", roles=("client",)))
    assert assign(Inventory("i.toml", hosts), [Node("c", "client")])["c"].host == "for-clients"


# -------------------------------------------------------------------------------- the way there


@pytest.fixture
def config() -> paramiko.SSHConfig:
    return paramiko.SSHConfig.from_text(
        """
Host db1
  HostName 10.0.0.11
  Port 2022
  User carol
  IdentityFile /keys/carol
  UserKnownHostsFile /keys/known /keys/more
  ProxyJump dave@bastion:2200,inner
Host inner
  HostName 10.9.9.9
  User erin
  IdentityFile /keys/erin
Host odd
  ProxyCommand nc %h %p
"""
    )


def test_what_the_inventory_leaves_out_comes_from_the_config(config: paramiko.SSHConfig) -> None:
    """HostName, Port, User, IdentityFile, UserKnownHostsFile and ProxyJump, hop by hop."""
    way = route(InventoryHost("db1"), config)
    assert (way.hostname, way.port, way.user) == ("10.0.0.11", 2022, "carol")
    assert way.keys == ("/keys/carol",)
    assert way.known_hosts == ("/keys/known", "/keys/more")
    inner = way.jump
    assert inner is not None
    assert (inner.shorthand, inner.keys) == ("erin@10.9.9.9", ("/keys/erin",))
    assert inner.jump is not None
    assert (inner.jump.shorthand, inner.jump.keys) == ("dave@bastion:2200", ("/keys/carol",))
    assert inner.jump.jump is None


def test_what_the_inventory_says_wins(config: paramiko.SSHConfig) -> None:
    """Each key of a host replaces the config's."""
    mine = InventoryHost("db1", user="me", port=22, key="/mine", known_hosts="/known", jump=("j",))
    way = route(mine, config)
    assert (way.user, way.port, way.keys, way.known_hosts) == ("me", 22, ("/mine",), ("/known",))
    assert way.jump is not None
    assert way.jump.hostname == "j"


def test_a_proxy_command_and_a_malformed_jump_are_refused(config: paramiko.SSHConfig) -> None:
    """They are not ignored: the user relies on them."""
    with pytest.raises(BadRequest, match="by ProxyCommand, which cannot be used here"):
        route(InventoryHost("odd"), config)
    with pytest.raises(BadRequest, match="the jump host 'a@b:c' must look like user@host:port"):
        route(InventoryHost("db1", jump=("a@b:c",)), config)


def test_an_alias_has_the_address_of_its_host(config: paramiko.SSHConfig) -> None:
    """The default of the address is what its name, or its HostName, resolves to."""
    found = with_resolved_addresses(
        Inventory("i.toml", (InventoryHost("db1"), InventoryHost("x", "10.0.0.7"))), config
    )
    assert [host.address for host in found.hosts] == ["10.0.0.11", "10.0.0.7"]


def test_an_address_that_others_can_not_reach_is_refused(config: paramiko.SSHConfig) -> None:
    """Loopback, unknown names, and two names for one machine."""
    with pytest.raises(BadRequest, match=r"localhost resolves to 127\.0\.0\.1, which other hosts"):
        with_resolved_addresses(Inventory("i.toml", (InventoryHost("localhost"),)), config)
    with pytest.raises(BadRequest, match=r"no\.such\.invalid has no IPv4 address"):
        with_resolved_addresses(Inventory("i.toml", (InventoryHost("no.such.invalid"),)), config)
    with pytest.raises(BadRequest, match=r"a and b both have the address 10\.0\.0\.1"):
        with_addresses(
            Inventory("i.toml", (InventoryHost("a"), InventoryHost("b"))), ["10.0.0.1", "10.0.0.1"]
        )
