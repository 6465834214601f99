"""Kafka consumption under schedulers that users write."""
