"""Ready pipelines on Spark: topics to files, files to topics, topic to topic, traces to a report."""
