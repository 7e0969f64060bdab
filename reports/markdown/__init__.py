"""The report as Markdown: the whole page, and the short one for the summary of a job."""
