"""Ready pipelines on Spark: topics to files and back, topic to topic, traces to a report.

    from downrange.pipelines import ClusterOptions, LakeOptions, RunOptions, run_lake

    summary = run_lake(
        LakeOptions(topics=("orders",), output="lake", run=RunOptions(once=True))
    )
    print(summary.rows)

Importing this needs nothing of Spark; what is used does.
"""
