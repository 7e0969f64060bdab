"""Reports: from result files to tables and pages.  No implementation is imported or run here."""
