"""The kit of drivers: a command line for a node, a question that says who leads, and a client of
plain calls make a whole driver.

    class Etcd(Service): ...
    PLUGIN = plugin(Etcd)

`Service` says what a driver declares; everything else (getting the program, installing, starting,
stopping, health, the leader, events, collection) is done here. The tutorial is
docs/tutorial/first-system.md.
"""

from clusters.kit.clients import servers_in_turn as servers_in_turn
from clusters.kit.driver import ServiceDriver as ServiceDriver
from clusters.kit.driver import plugin as plugin
from clusters.kit.service import Copy as Copy
from clusters.kit.service import Event as Event
from clusters.kit.service import NodeAccess as NodeAccess
from clusters.kit.service import Profile as Profile
from clusters.kit.service import Service as Service
from clusters.kit.service import View as View
from clusters.kit.service import role_events as role_events
from clusters.kit.service import time_of_line as time_of_line
