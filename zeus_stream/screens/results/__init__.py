"""Results for other systems, one file each kind of exporter."""
