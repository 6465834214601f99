"""A pipeline of documents with SLAs on SQLite: what is late goes first, and nothing is lost.

Each document is a DAG: split it, read its pages (on an executor with few slots), classify, file the result. An urgent
document that comes last, with an SLA that is already missed, overtakes the backlog. Kill the program and start it again
with the same --db: it goes on where it was.

    python examples/document_pipeline.py --documents 6
    python examples/document_pipeline.py --db sqlite:///documents.db
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from fairlead.jobs import Dag, Jobs, Run

PAGES = 4


def pipeline(database: str) -> tuple[Jobs, list[str]]:
    """Make the service and its tasks; the list tells the order in which documents were filed."""
    jobs = Jobs(database, executors={"default": 4, "ocr": 2})
    filed: list[str] = []

    @jobs.task
    async def split(document: str) -> list[str]:
        return [f"{document}, page {number}" for number in range(1, PAGES + 1)]

    @jobs.task(executor="ocr", estimate="50ms", retries=2)
    def read(pages: list[str], number: int) -> str:
        time.sleep(0.05)  # plain functions run on threads
        return f"text of {pages[number]}"

    @jobs.task
    async def classify(texts: list[str]) -> dict[str, object]:
        return {"kind": "invoice", "pages": len(texts)}

    @jobs.task
    async def file(document: str, found: dict[str, object]) -> str:
        filed.append(document)
        return f"{document}: {found['kind']}, {found['pages']} pages"

    return jobs, filed


def dag_of(jobs: Jobs, document: str, soft_sla: str | None) -> Dag:
    dag = Dag("document", soft_sla=soft_sla, hard_sla="1h", key=document)
    tasks = jobs.tasks
    pages = dag.add(tasks["split"], document)
    texts = [dag.add(tasks["read"], pages, number) for number in range(PAGES)]
    dag.add(tasks["file"], document, dag.add(tasks["classify"], texts)).options(name="file")
    return dag


async def main(documents: int, database: str) -> list[str]:
    jobs, filed = pipeline(database)
    runs: dict[str, Run] = {}
    for number in range(1, documents + 1):
        name = f"document {number}"
        runs[name] = await jobs.submit(dag_of(jobs, name, "15m"))
    runs["urgent document"] = await jobs.submit(dag_of(jobs, "urgent document", "1ms"))
    print(f"{len(runs)} documents are stored in {database}")
    async with jobs:  # from here on this process plans and works
        for name, run in runs.items():
            outcome = await jobs.wait(run)
            print(f"{outcome.state:10} {outcome.results.get('file', name)}")
    print("filed in this order:", ", ".join(filed))
    return filed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--documents", type=int, default=6)
    parser.add_argument(
        "--db", help="sqlite:///file.db or postgresql://...; default: a temporary file"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(
            main(options.documents, options.db or f"sqlite:///{Path(folder) / 'documents.db'}")
        )
