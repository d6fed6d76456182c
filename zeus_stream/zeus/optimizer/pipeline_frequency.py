"""Clocks for each instruction of a pipeline, with Zeus's name. Here the analyzer plans them."""

from zeus_stream.zeus.replaced import replaced

PipelineFrequencyOptimizer = replaced(
    "PipelineFrequencyOptimizer",
    "Mark each instruction with `zeus_stream.pipeline(stage=, stages=, micro_batches=).instruction(kind,"
    " micro_batch)`; no server is needed (docs/how-to/pipeline.md).",
)
