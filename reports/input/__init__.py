"""Input of the reports: files are read, judged and counted, and give records."""
