"""All pipelines in one process, to be killed in the middle and started again.

    pipelines_job.py SETTINGS.json [killed]

A session is expensive, so they share one, each in a thread of its own. Results are printed as JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downrange.pipelines.lake import LakeOptions, run_lake
from downrange.pipelines.load import LoadOptions, run_load
from downrange.pipelines.mirror import MirrorOptions, run_mirror
from downrange.pipelines.options import ClusterOptions, RunOptions
from downrange.pipelines.replay import ReplayOptions, run_replay
from downrange.pipelines.session import make_session

if TYPE_CHECKING:
    from downrange.pipelines.summary import Progress

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
#: Small requests, so that a pipeline can be stopped between two of them.
SMALL = {"maxBatchBytes": "1024", "sendTimeoutMs": "120000"}


def run(name_server: str, folder: Path, *, is_killed_later: bool) -> list[dict[str, Any]]:
    """Run the pipelines until all is done."""
    cluster = ClusterOptions(name_server=name_server)

    def once(name: str) -> RunOptions:
        return RunOptions(once=True, checkpoint=str(folder / f"{name}-check"))

    lake = LakeOptions(
        topics=("landing",),
        output=str(folder / "lake"),
        cluster=cluster,
        batch_messages_max=150,
        run=RunOptions(once=True),
    )
    mirror = MirrorOptions(
        topics=("orders",),
        cluster=cluster,
        target_topic="copied",
        batch_messages_max=250,
        write=SMALL,
        run=once("mirror"),
    )
    load = LoadOptions(
        path=str(folder / "in"),
        topic="loaded",
        cluster=cluster,
        body="text",
        keys=("id",),
        batch_files_max=2,
        write=SMALL,
        run=once("load"),
    )
    replay = ReplayOptions(
        topic="orders",
        target_topic="replayed",
        cluster=cluster,
        from_time="0",
        write=SMALL,
    )
    # A blocked pipeline keeps its tasks, and the others need some, too.
    spark = make_session("pipelines", master="local[12]", settings=SETTINGS)
    jobs: list[Any] = [
        lambda show: run_lake(lake, spark, show=show),
        lambda show: run_mirror(mirror, spark, show=show),
        lambda show: run_load(load, spark, show=show),
        lambda show: run_replay(replay, spark, show=show),
    ]
    running: list[Future[Any]] = []
    with ThreadPoolExecutor(len(jobs)) as pool:
        for job in jobs:
            # One after the other: each starts a Python process, which has ten seconds to start.
            # Blocked pipelines never report rows.
            has_rows = threading.Event()

            def show(progress: Progress, has_rows: threading.Event = has_rows) -> None:
                if progress.rows:
                    has_rows.set()

            running.append(pool.submit(job, show))
            has_rows.wait(60 if job is jobs[0] else 5)
        wait(running)
        if any(one.exception() for one in running) and is_killed_later:
            threading.Event().wait(600)  # a pipeline that was blocked too long may fail
    spark.stop()
    return [one.result().as_json() for one in running]


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    done = run(given["name_server"], Path(given["folder"]), is_killed_later="killed" in sys.argv)
    print(json.dumps(done))
