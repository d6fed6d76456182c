"""Text, tables and JSON for people and programs: runs, jobs, energy bills."""
