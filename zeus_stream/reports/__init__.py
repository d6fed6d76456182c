"""Reports that people read: runs, jobs, energy bills."""
