"""The composition root: a running gateway of one process, its signals and its admin port."""
