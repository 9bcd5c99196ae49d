"""Apache Kafka (KRaft): partitions of a replicated log, kept by brokers, whose leaders a quorum of
controllers elects.
"""

from clusters.systems.kafka.driver import PLUGIN

__all__ = ["PLUGIN"]
