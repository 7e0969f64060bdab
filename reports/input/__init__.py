"""Input of the reports: files as they are read, judged and counted, and the records that come of them."""
