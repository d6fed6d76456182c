"""Reports of a site: the runs of a period."""
