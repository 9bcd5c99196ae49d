"""Programs on nodes that break disks, processes and clocks."""
