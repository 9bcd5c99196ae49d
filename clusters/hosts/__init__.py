"""Where nodes run: one file for each kind of hosts, with the same verbs in each.

    local.py   nodes as network namespaces of this machine, no root needed

Every kind raises nodes, gives each an agent (`_agent.py`, carried by `_pipe.py`), and leaves
nothing behind.
"""
