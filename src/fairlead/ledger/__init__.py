"""Limits that many processes keep in common through a Redis or Valkey.  It needs redis-py: nothing is imported here."""
