"""The deviation ledger: its records, their checks, and the commands that keep it true."""
