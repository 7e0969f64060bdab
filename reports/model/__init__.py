"""The model of a report: its records, and the tables that every format is a view of."""
