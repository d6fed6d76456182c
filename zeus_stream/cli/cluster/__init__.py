"""Commands on data that grows: retention, the lake, the broker."""
