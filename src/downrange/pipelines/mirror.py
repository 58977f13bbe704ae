"""Topic to topic, within a cluster or from one cluster to another.

Keys, tags and properties are kept, except those that brokers set. Messages of a queue stay in
order: one task reads a queue, and all of its messages go to one queue of the target. Delivery is at
least once. A copy that is sent twice has the same id, which is derived from the position it was
read from, so readers can drop it (`downrange.spark.drop_duplicates`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from downrange.client.flows.validation import check_topic
from downrange.errors import OptionError
from downrange.options.flags import flag
from downrange.pipelines.cluster_check import check_sources
from downrange.pipelines.options import ReadingOptions
from downrange.pipelines.stream_run import (
    own_session,
    run_stream,
    take_checkpoint,
    translate_errors,
)
from downrange.pipelines.topic_copy import (
    TOPIC_MARK,
    TargetOptions,
    copied_rows,
    find_queues,
    write_options,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from downrange.pipelines.stream_run import Show, StopRequest
    from downrange.pipelines.summary import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorOptions(ReadingOptions):
    """What is copied, and where to.

    Attributes:
        target: The other cluster; the same cluster if it has no name server.
        target_topic: The topic to send to; `{topic}` stands for the topic that is read.
        create: Whether to create missing topics of the target, with as many queues per broker.
        label: Part of the ids. If several clusters feed one topic, give each its own label.
        write: More options of the `rocketmq` sink, by name.
    """

    target: TargetOptions = field(default_factory=TargetOptions)
    target_topic: str = field(
        default=TOPIC_MARK,
        metadata=flag("Topic to send to; {topic} is the one that is read.", metavar="NAME"),
    )
    create: bool = field(default=False, metadata=flag("Create missing topics of the target."))
    label: str = field(default="mirror", metadata=flag("Part of the message ids.", metavar="TEXT"))
    write: dict[str, str] = field(
        default_factory=dict[str, str],
        metadata=flag(
            "An option of the rocketmq sink; repeatable.", metavar="NAME=VALUE", name="write-option"
        ),
    )

    def __post_init__(self) -> None:
        """Reject invalid options.

        Raises:
            OptionError: Names the option.
        """
        ReadingOptions.__post_init__(self)
        if self.run.checkpoint is None:
            raise OptionError(
                "checkpoint is missing: name a folder for the offsets reached, such as "
                "mirror-checkpoint"
            )
        target = self.target.or_else(self.cluster)
        is_same = (target.name_server, target.namespace) == (
            self.cluster.name_server,
            self.cluster.namespace,
        )
        for source, name in self.names.items():
            check_topic(name)
            if is_same and name in self.topics:
                raise OptionError(
                    f"{source!r} would be copied to {name!r} of the same cluster, which is read, "
                    "too: an endless loop; give another target_topic, or a target"
                )

    @property
    def names(self) -> dict[str, str]:
        """Source topic -> target topic."""
        return {name: self.target_topic.replace(TOPIC_MARK, name) for name in self.topics}


def run_mirror(
    options: MirrorOptions,
    spark: SparkSession | None = None,
    *,
    show: Show | None = None,
    stop: StopRequest | None = None,
) -> Summary:
    """Copy topics, until everything is copied or a stop is requested.

    Args:
        options: What to copy, and where.
        spark: The session to use; if None, Spark is started, and stopped at the end.
        show: Called with the progress.
        stop: A request to stop; SIGINT and SIGTERM set it, too.

    Raises:
        OptionError: An option is invalid, or the checkpoint belongs to another job.
        RouteNotFound: A topic of the target does not exist.
        PipelineFailed: Spark ended with an error.
    """
    target = options.target.or_else(options.cluster)
    if spark is None:
        check_sources(options.cluster, options.topics, checkpoint=options.run.checkpoint)
    queue_counts = find_queues(options.cluster, target, options.names, create=options.create)
    job = {
        "pipeline": "mirror",
        "topics": sorted(options.topics),
        "target": target.name_server,
        "target_topic": options.target_topic,
        "label": options.label,
        "tags": options.tags,
    }
    with own_session("mirror", spark, options.spark) as session:
        checkpoint, _ = take_checkpoint(session, options.run, "", job)
        with translate_errors():
            # One task reads a queue, in order.
            source = {**options.source_options(), "orderBy": "queue"}
            rows = copied_rows(
                session.readStream.format("downrange").options(**source).load(),
                topics=options.topics,
                target_topic=options.target_topic,
                queue_counts=queue_counts,
                label=options.label,
            )
        writer = (
            rows.writeStream.format("downrange")
            .queryName("downrange mirror")
            .options(**write_options(target), **options.write)
        )
        summary = run_stream(
            "mirror", writer, options.run, checkpoint=checkpoint, show=show, stop=stop
        )
        facts = {"topics": options.names, "target": target.name_server, **summary.facts}
        return replace(summary, facts=facts)
