"""The deviation ledger: its records, what is checked of them, and the commands that keep it true."""
