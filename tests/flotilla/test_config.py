"""A node's configuration: what makes no sense is refused, and the key is named."""

import pytest

from clusters.flotilla.config import ConfigError, loads

SOUND = 'role = "broker"\nnodeName = "n"\nlistenHost = "127.0.0.1"\nstorePath = "s"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("haTransferBatchSize = 8388609", "haTransferBatchSize must be at most 8388608"),
        ("topics = { orders = 'four' }", "topics: orders must be of type int, not 'four'"),
        ("topics = { orders = true }", "topics: orders must be of type int, not True"),
        ("topics = { orders = -1 }", "topics: 'orders': a topic has 1 to 10,000 queues, not -1"),
        ("topics = { orders = 0 }", "topics: 'orders'"),
        (f"topics = {{ {'x' * 300} = 4 }}", "topics: .* 127 printable bytes"),
        ("totalReplicas = 0", "totalReplicas must be at least 1"),
        ("inSyncReplicas = 0", "inSyncReplicas must be at least 1"),
        ("minInSyncReplicas = -3", "minInSyncReplicas must be at least 1, not -3"),
        ("maxMessageSize = -1", "maxMessageSize must be at least 1"),
        ("mappedFileSizeCommitLog = 10", "mappedFileSizeCommitLog must be at least 64"),
        ("accessMessageInMemoryMaxRatio = 900", "MaxRatio must be at most 100"),
        ("listenPort = 70000", "listenPort must be at most 65535"),
        ("controllerAddr = ['nonsense']", "controllerAddr must have addresses ip:port"),
        ("namesrvAddr = ['127.0.0.1']", "namesrvAddr must have addresses ip:port"),
        (
            "controllerDLegerPeers = { n1 = 'nonsense' }",
            "controllerDLegerPeers must have addresses",
        ),
        ("controllerDLegerPeers = { n1 = 5 }", "controllerDLegerPeers: n1 must be of type str"),
        ("raftSnapshotEntries = 0", "raftSnapshotEntries must be at least 1"),
        (f"brokerElectionPriority = {2**64}", "brokerElectionPriority must have 64 bits at most"),
        (f"fileReservedTime = {10**400}", "fileReservedTime must have 64 bits at most"),
        (f"slaveTimeout = {10**400}", "slaveTimeout must have 64 bits at most"),
        (f"topics = {{ orders = {10**400} }}", "topics: 'orders': a topic has 1 to 10,000"),
        ("timeScale = 1e9", "timeScale must be from 0.0001 to 1000, not 1000000000.0"),
        ("timeScale = 1e-9", "timeScale must be from 0.0001 to 1000, not 1e-09"),
        (f"slaveTimeout = {10**18}", r"slaveTimeout must be at most 31536000000 ms \(365 days\)"),
        ("flushIntervalCommitLog = 1e300", "flushIntervalCommitLog must be at most 31536000000 ms"),
        (f"timerMaxDelaySec = {10**12}", "timerMaxDelaySec must be at most 31536000, not"),
        (f"transactionCheckMax = {2**40}", "transactionCheckMax must be at most 1000000"),
        (f"totalReplicas = {2**40}", "totalReplicas must be at most 1000000"),
        (f"minInSyncReplicas = {2**40}", "minInSyncReplicas must be at most 1000000"),
        (f"maxMessageSize = {2**60}", "maxMessageSize must be at most"),
        (f"mappedFileSizeCommitLog = {2**60}", "mappedFileSizeCommitLog must be at most"),
        (f"raftSnapshotEntries = {2**60}", "raftSnapshotEntries must be at most 1000000000"),
        ("fileReservedTime = 1e30", "fileReservedTime must be at most 10000000, not 1e"),
        (f"timeScale = {10**400}", "timeScale must be a positive number of 64 bits at most"),
        ("raftHeartbeatInterval = 2000", "raftHeartbeatInterval must be less than raftElection"),
    ],
)
def test_nonsense_is_refused_by_its_key(text: str, says: str) -> None:
    """One sentence: not an exception later, and not a node that silently does nothing."""
    assert loads(SOUND)
    with pytest.raises(ConfigError, match=says):
        loads(SOUND + text)


@pytest.mark.parametrize("host", ["", "a..b", "x" * 64, r"a\u0000b"])
def test_a_host_that_nobody_can_dial_is_refused(host: str) -> None:
    """It is also what a node registers with."""
    with pytest.raises(ConfigError, match="listenHost must be a host name or address, not '"):
        loads(SOUND.replace("127.0.0.1", host))
