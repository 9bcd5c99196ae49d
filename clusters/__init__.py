"""Clusters: the systems that are tested, the hosts that they run on, and Flotilla, which is ours.

systems/   one driver a file: how to install, start, ask and stop one kind of cluster
hosts/     one kind of host a file: the same verbs in each, through an agent on every node
flotilla/  the cluster under test; it knows nothing of the rest
"""
