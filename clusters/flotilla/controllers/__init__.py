"""The controllers: the state that they agree on, and the election of masters."""
