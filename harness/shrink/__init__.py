"""Shrink a failing trial to a small one."""
