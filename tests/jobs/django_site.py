"""A Django project in one file, for `test_blocking`: submit in `transaction.atomic()`, and print what came of it."""

import sys
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.db import connection, connections, transaction

from fairlead.errors import KeyConflict, Misuse
from fairlead.jobs import Dag
from tests.engines_postgres import plain
from tests.jobs.operations_rig import small

parts = urlsplit(plain(sys.argv[1]))
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": parts.path[1:],
            "USER": parts.username,
            "PASSWORD": parts.password or "",
            "HOST": parts.hostname,
            "PORT": str(parts.port),
        }
    }
)
django.setup()
jobs = small(sys.argv[1])


def dag(name, number=1, key=None):
    one = Dag(name, key=key)
    one.add("double", number)
    return one


class Roll(Exception):
    """Rolls the transaction back."""


kept = []
for place in (connection, connections["default"]):
    with transaction.atomic():
        kept.append(jobs.sync.submit(dag("kept"), connection=place))
    try:
        with transaction.atomic():
            gone = jobs.sync.submit(dag("gone"), connection=place)
            raise Roll
    except Roll:
        pass
    with transaction.atomic():
        try:
            with transaction.atomic():
                jobs.sync.submit(dag("gone"), connection=place)
                raise Roll
        except Roll:
            pass
        kept.append(jobs.sync.submit(dag("kept"), connection=place))
for run in kept:
    assert jobs.sync.outcome(run) is None
assert [run.new for run in kept] == [True] * 4
with connection.cursor() as cursor:
    cursor.execute("SELECT DISTINCT name FROM test_operations.dags")
    print(*(name for (name,) in cursor.fetchall()))
try:
    jobs.sync.submit(dag("x"), connection=connection)
except Misuse:
    print("refused")
with transaction.atomic():
    jobs.sync.submit(dag("keyed", 1, "k"), connection=connection)
    try:
        jobs.sync.submit(dag("keyed", 2, "k"), connection=connection)
    except KeyConflict:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 'usable'")
            print(cursor.fetchone()[0])
jobs.sync.close()
