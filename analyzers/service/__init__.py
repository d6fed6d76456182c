"""The process of an analyzer: tasks that wait, and pass on. The pure packages decide."""
