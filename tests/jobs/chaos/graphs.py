"""The DAGs of a storm, made from their key alone: a submitter that was killed makes the same one again."""

from random import Random
from typing import NamedTuple


class Made(NamedTuple):
    """A DAG: what each node needs, how each ends unless it completes, and which task runs it for how long."""

    key: str
    needs: dict[str, list[str]]
    ends: dict[str, str]
    tasks: dict[str, str]
    milliseconds: dict[str, int]


KINDS = {"waits": 8, "thread": 3, "flaky": 1, "raises": 0.25}


def made(
    key: str, nodes: int, executors: tuple[str, ...], longest: int, kinds: dict[str, float] = KINDS
) -> Made:
    """A random DAG of bodies of these kinds, by weight; `raises` is how many of DAGs have one that always does."""
    random = Random(key)
    usual = [kind for kind in kinds if kind != "raises"]
    names = [f"n{number}" for number in range(nodes)]
    needs: dict[str, list[str]] = {}
    tasks: dict[str, str] = {}
    for number, name in enumerate(names):
        reach = names[max(0, number - 40) : number]
        needs[name] = sorted(random.sample(reach, min(len(reach), random.choice((0, 1, 1, 2, 3)))))
        kind = random.choices(usual, [kinds[one] for one in usual])[0]
        tasks[name] = f"{kind}_{random.choice(executors)}"
    if random.random() < kinds.get("raises", 0):
        tasks[random.choice(names[nodes // 2 :])] = f"raises_{executors[0]}"
    ends: dict[str, str] = {}
    for name in names:
        if any(need in ends for need in needs[name]):
            ends[name] = "skipped"
        elif tasks[name].startswith("raises"):
            ends[name] = "failed"
    return Made(key, needs, ends, tasks, {name: random.randint(1, longest) for name in names})
