"""What a run was: its timeline, faults, leader terms and epochs."""
