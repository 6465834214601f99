"""QuixStreams in its own environment: python streams_quix.py SERVERS TOPIC RECORDS.  It imports nothing of ours."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import warnings

PARTITIONS = 8


def main(servers: str, topic_name: str, records: int) -> None:
    warnings.simplefilter("ignore")
    from quixstreams import Application
    from quixstreams.models import TopicConfig
    from quixstreams.models.topics import TopicAdmin

    # It asks an admin client about its topics, once at the start, and the mock cluster knows of none.
    known = TopicConfig(num_partitions=PARTITIONS, replication_factor=1)
    TopicAdmin.inspect_topics = lambda self, names, timeout=None: dict.fromkeys(names, known)
    app = Application(
        broker_address=servers,
        consumer_group=f"bench-{time.time_ns()}",
        auto_offset_reset="earliest",
        auto_create_topics=False,
        state_dir=tempfile.mkdtemp(prefix="fairlead-quix-"),  # else ./state of whoever measures
        loglevel="ERROR",
    )
    topic = app.topic(topic_name, value_deserializer="bytes", key_deserializer="bytes")
    frame = app.dataframe(topic)
    seen = 0
    began = cpu = 0.0

    def handle(value: bytes) -> None:
        nonlocal seen, began, cpu
        if not seen:
            began, cpu = time.perf_counter(), time.process_time()
        seen += 1
        if seen == records:
            took, used = time.perf_counter() - began, time.process_time() - cpu
            each = 1e6 / (records - 1)
            print(json.dumps({"wall": took * each, "cpu": used * each}), flush=True)
            os._exit(0)

    frame.update(handle)
    app.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
