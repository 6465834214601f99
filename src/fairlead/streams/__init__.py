"""Kafka consumption under schedulers that users write."""

from fairlead.errors import BrokerFault, CommitRefused, SchedulerFailed, StreamMisuse
from fairlead.streams.app import StreamApp
from fairlead.streams.broker import Message
from fairlead.streams.consumer import Consumer
from fairlead.streams.jobs import Job
from fairlead.streams.queue import JobsQueue
from fairlead.streams.scheduler import StreamScheduler
from fairlead.streams.statistics import Statistics

__all__ = [
    "BrokerFault",
    "CommitRefused",
    "Consumer",
    "Job",
    "JobsQueue",
    "Message",
    "SchedulerFailed",
    "Statistics",
    "StreamApp",
    "StreamMisuse",
    "StreamScheduler",
]
