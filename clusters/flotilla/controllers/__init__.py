"""The controllers: what they agree on, and who is elected."""
