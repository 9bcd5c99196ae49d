"""The state machine of a master/slave pair, kept in ZooKeeper, and the controllers that switch it.

machine      states, transitions and their guards. Pure
nodes        where everything is in ZooKeeper, and one decision as one multi
controller   the HA controller: a node that decides and remembers nothing
"""
